// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "accelerate/error.h"
#include "core/base/atomic_file.h"
#include "core/base/checksum.h"
#include "core/base/mapped_file.h"
#include "core/base/parallel_for.h"
#include "core/base/str.h"
#include "core/checkpoint/staging.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

/// Removes a trailing slash. Does not normalise the path: ".." after a symbolic
/// link is not the parent in the path.
fs::path without_slash(const fs::path& path) {
  auto plain = fs::absolute(path);
  while (!plain.has_filename() && plain.has_relative_path()) {
    plain = plain.parent_path();
  }
  const auto name = plain.filename();
  return name == "." || name == ".." ? fs::weakly_canonical(plain) : plain;
}

std::string read_text(const fs::path& path) {
  const MappedFile file(path, "load_state", "manifest");
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Parses a manifest. Empty if it is missing or damaged.
std::optional<Manifest> try_parse(const fs::path& path) {
  if (!fs::is_regular_file(fs::symlink_status(path))) {
    return std::nullopt;
  }
  try {
    return parse_manifest(read_text(path), path.string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Manifest> try_manifest(const fs::path& folder) {
  return try_parse(folder / kManifestName);
}

/// Writes a manifest without syncing it to disk.
void write_manifest(const fs::path& folder, const Manifest& manifest) {
  AtomicFile file(folder / kManifestName);
  file.write(format_manifest(manifest));
  file.commit(/*sync=*/false);
}

/// Moves the manifest, which is already on disk, from the stage to the target.
void move_manifest(const fs::path& stage, const fs::path& target) {
  if (rename(
          (stage / kManifestName).c_str(), (target / kManifestName).c_str()) !=
      0) {
    cannot_save(
        "rename a file to", target / kManifestName, std::strerror(errno));
  }
}

/// Moves the files of a committed manifest to the checkpoint's folder, and
/// removes the files that it replaces.
void move_staged_files(const fs::path& target, Manifest& manifest) {
  if (manifest.staged.empty()) {
    return;
  }
  const auto stage = target / manifest.staged;
  for (const auto& entry : entries_of(stage)) {
    const auto destination = target / entry.filename();
    if (entry.filename().string().starts_with('.') ||
        entry.filename() == kManifestName) {
      remove_tree(entry); // incomplete, or not on disk yet
      continue;
    }
    const auto is_folder = [](const fs::path& path) {
      return fs::is_directory(fs::symlink_status(path));
    };
    if (is_folder(entry) || is_folder(destination)) {
      remove_tree(destination);
    }
    if (rename(entry.c_str(), destination.c_str()) != 0) {
      cannot_save("rename a file to", destination, std::strerror(errno));
    }
  }
  for (const auto& name : manifest.replaced) {
    if (!manifest.files.contains(name)) {
      remove_tree(target / name);
    }
  }
  manifest.staged.clear();
  manifest.replaced.clear();
  // The manifest is written in the stage first, so that a killed process leaves
  // no partial one in the target.
  make_folder(stage);
  write_manifest(stage, manifest);
  // Sync both before the rename. The rename itself need not be synced: until it
  // is on disk, the old manifest there also finds the moved files.
  sync_all({target, stage / kManifestName});
  move_manifest(stage, target);
  remove_tree(stage);
}

std::string save_of(const Manifest& manifest) {
  return save_name(manifest.moment, manifest.job);
}

/// Whether the checkpoint of this save is committed, with all files moved.
bool is_committed(
    const std::optional<Manifest>& manifest,
    const std::string& save) {
  return manifest && save_of(*manifest) == save && manifest->staged.empty();
}

/// The main process's files, which the part of a rank never replaces.
std::set<std::string> names_of_files(const Manifest& manifest) {
  std::set<std::string> names = {kManifestName};
  for (const auto& [name, record] : manifest.files) {
    names.insert(name);
  }
  return names;
}

bool is_rank_file(const fs::path& entry) {
  const auto name = entry.filename().string();
  return name.starts_with("rank_") && name.find("-at-") != std::string::npos;
}

/// Marks in `folder` that the rank has begun to save, unless its part is
/// already there. Does nothing if the folder does not exist.
void put_mark(
    const fs::path& folder,
    int rank,
    std::int64_t moment,
    const std::string& job) {
  const auto mark = folder / mark_name(rank, moment, job);
  const auto is_done = [&] {
    const auto shard =
        try_parse(folder / (rank_shard_name(rank, moment) + ".json"));
    if (!shard || shard->job != job) {
      return false;
    }
    unlink(mark.c_str());
    return true;
  };
  if (is_done()) {
    return;
  }
  constexpr mode_t kForUmask = 0666;
  const UniqueFile file(
      open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kForUmask));
  if (!file && errno != ENOENT && errno != ENOTDIR) {
    cannot_save("create", mark, std::strerror(errno));
  }
  // If the part was added meanwhile, remove the mark again.
  is_done();
}

/// Adds the marks of killed ranks to checkpoints before the folders that these
/// ranks left are removed.
void keep_marks(const fs::path& parent) {
  for (const auto& entry : entries_of(parent)) {
    const auto stage_name = parse_stage_name(entry);
    if (!stage_name || !stage_name->rank) {
      continue;
    }
    const auto target = parent / stage_name->target;
    const auto manifest = try_manifest(target);
    if (is_committed(manifest, stage_name->save) && !manifest->is_of_all) {
      put_mark(target, *stage_name->rank, manifest->moment, manifest->job);
    }
  }
}

/// Whether the entry is named by `rank_shard_name` for this moment.
bool is_of_moment(const fs::path& entry, std::int64_t moment) {
  return entry.filename().string().find(str_cat("-at-", moment, '.')) !=
         std::string::npos;
}

} // namespace

CheckpointWriter::CheckpointWriter(
    const fs::path& target,
    std::int64_t moment,
    const std::string& job)
    : target_(without_slash(target)),
      moment_(moment),
      job_(job),
      save_(save_name(moment, job)) {
  make_folder(target_.parent_path());
  const bool is_new = !fs::exists(target_);
  if (!is_new) {
    if (!fs::is_directory(target_)) {
      cannot_save("create the folder", target_, "a file with this name exists");
    }
    // Finish a save that was killed after its commit.
    auto manifest = try_manifest(target_);
    if (manifest && !manifest->staged.empty()) {
      const auto lock = lock_folder(target_ / manifest->staged, target_);
      move_staged_files(target_, *manifest);
    }
  }
  keep_marks(target_.parent_path());
  remove_leftovers(target_, save_);
  stage_ = is_new ? stage_beside(target_, save_) : stage_inside(target_, save_);
  lock_ = make_locked_folder(stage_, target_);
  try {
    // Another job may have begun since the check. One of the two jobs sees the
    // other.
    remove_leftovers(target_, save_, stage_);
  } catch (const Error&) {
    remove_tree(stage_);
    throw;
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (is_committed_) {
    return;
  }
  remove_tree(stage_);
  try {
    for (const auto& shard : ready_shards(target_, save_)) {
      remove_at_once(shard);
    }
  } catch (const Error&) {
    // The next save removes these parts.
  }
}

void CheckpointWriter::commit(Manifest manifest) {
  manifest.moment = moment_;
  manifest.job = job_;
  manifest.staged.clear();
  // Parts that are finished by now appear together with the checkpoint.
  const auto begun = merge_shards(manifest, stage_, {});
  if (stage_.parent_path() == target_) {
    commit_inside(manifest);
  } else {
    write_manifest(stage_, manifest);
    sync_tree(stage_);
    if (rename(stage_.c_str(), target_.c_str()) == 0) {
      is_committed_ = true;
      sync_folder(target_.parent_path());
    } else {
      const int error = errno;
      if (!fs::is_directory(target_)) {
        cannot_save("rename a file to", target_, std::strerror(error));
      }
      // Another process has created the folder meanwhile. Commit inside it.
      fs::remove(stage_ / kManifestName);
      const auto inside = stage_inside(target_, save_);
      const auto lock = lock_folder(inside, target_);
      remove_tree(inside);
      if (rename(stage_.c_str(), inside.c_str()) != 0) {
        cannot_save("rename a file to", inside, std::strerror(errno));
      }
      stage_ = inside;
      commit_inside(manifest);
    }
  }
  // Ranks that finished before the commit have left their parts to this
  // process. Later ones see the checkpoint and merge their parts themselves.
  merge_shards(manifest, target_, begun);
  remove_old_shards();
  lock_.reset();
}

void CheckpointWriter::remove_old_shards() const {
  for (const auto& entry : entries_of(target_)) {
    if (is_rank_file(entry) && !is_of_moment(entry, moment_)) {
      remove_tree(entry);
    }
  }
}

void CheckpointWriter::commit_inside(Manifest& manifest) {
  manifest.staged = stage_.filename().string();
  const auto before = try_manifest(target_);
  if (before) {
    for (const auto& [name, record] : before->files) {
      if (!manifest.files.contains(name)) {
        manifest.replaced.push_back(name);
      }
    }
  }
  if (!before || before->job != job_) {
    // Rank files of another job at the same moment have the same names.
    for (const auto& entry : entries_of(target_)) {
      if (is_rank_file(entry) && is_of_moment(entry, moment_) &&
          !fs::exists(stage_ / entry.filename())) {
        manifest.replaced.push_back(entry.filename().string());
      }
    }
  }
  write_manifest(stage_, manifest);
  sync_tree(stage_);
  move_manifest(stage_, target_);
  sync_folder(target_);
  is_committed_ = true;
  move_staged_files(target_, manifest);
}

std::set<int> CheckpointWriter::merge_shards(
    const Manifest& manifest,
    const fs::path& folder,
    std::set<int> begun) const {
  begun.merge(ranks_beside(target_, save_));
  for (const auto& shard : ready_shards(target_, save_)) {
    // The rank may have begun after `ranks_beside` was called.
    if (const auto stage = parse_stage_name(shard); stage && stage->rank) {
      begun.insert(*stage->rank);
    }
    merge_shard(shard, folder, names_of_files(manifest));
  }
  for (const int rank : begun) {
    put_mark(folder, rank, moment_, job_);
  }
  return begun;
}

RankShardWriter::RankShardWriter(
    const fs::path& target,
    std::int64_t moment,
    int rank,
    const std::string& job,
    bool is_of_all)
    : target_(without_slash(target)),
      moment_(moment),
      rank_(rank),
      job_(job),
      save_(save_name(moment, job)),
      is_of_all_(is_of_all) {
  lock_ = make_shard_folder(target_, save_, rank_, folder_);
  // The main process looks for ranks that have begun after its commit, and this
  // rank looks for the checkpoint after it has begun: one of them finds the
  // other.
  if (!is_of_all_ && is_committed(try_manifest(target_), save_)) {
    put_mark(target_, rank_, moment_, job_);
  }
}

RankShardWriter::~RankShardWriter() {
  if (is_committed_ || is_of_all_) {
    remove_tree(folder_);
    return;
  }
  try {
    for (const auto& entry : entries_of(folder_)) {
      remove_tree(entry);
    }
  } catch (const Error&) {
    // The next save removes these files.
  }
}

void RankShardWriter::commit() {
  sync_tree(folder_);
  const auto ready = ready_shard(target_, save_, rank_);
  // `ready` may exist, left by a killed run or by an earlier save at this
  // moment.
  if (!remove_at_once(ready) || rename(folder_.c_str(), ready.c_str()) != 0) {
    cannot_save("rename a file to", ready, std::strerror(errno));
  }
  is_committed_ = true;
  if (is_of_all_) {
    return;
  }
  // The main process looks for finished parts after its commit, and this rank
  // looks for the checkpoint after its part is finished: one of them finds the
  // other.
  const auto manifest = try_manifest(target_);
  if (is_committed(manifest, save_)) {
    merge_shard(ready, target_, names_of_files(*manifest));
    remove_late_shard();
  }
}

void RankShardWriter::remove_late_shard() const {
  const auto manifest = try_manifest(target_);
  // At the same moment, the file may be a part of another job.
  if (!manifest || manifest->moment == moment_) {
    return;
  }
  // The save that replaced the checkpoint has looked for old parts before this
  // one was added.
  const auto start = rank_shard_name(rank_, moment_) + '.';
  for (const auto& entry : entries_of(target_)) {
    if (entry.filename().string().starts_with(start)) {
      remove_tree(entry);
    }
  }
}

FileRecord record_of(const fs::path& file) {
  const MappedFile mapped(file, "save_state", "file of a checkpoint");
  return {
      mapped.bytes().size(),
      chunked_checksum_of(mapped.bytes()),
      kChecksumChunk};
}

std::string describe_missing_checkpoint(
    const fs::path& folder,
    const std::function<bool(const fs::path&)>& is_one) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(without_slash(folder).parent_path(), error),
       end;
       !error && it != end;
       it.increment(error)) {
    const auto name = it->path().filename().string();
    if (!name.starts_with('.') && is_one(it->path())) {
      names.push_back(name);
    }
  }
  const auto problem =
      str_cat("[load_state] No checkpoint at '", folder.string(), "'. ");
  if (names.empty()) {
    return problem + "Pass the folder of a saved checkpoint";
  }
  // checkpoint_10 comes after checkpoint_9.
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  constexpr std::size_t kMostShown = 5;
  std::string text;
  const auto first = names.size() - std::min(names.size(), kMostShown);
  for (std::size_t i = first; i < names.size(); ++i) {
    text += str_cat(text.empty() ? "" : ", ", names[i]);
  }
  return str_cat(problem, "Existing: ", first > 0 ? "..., " : "", text);
}

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(without_slash(folder)) {
  const auto path = folder_ / kManifestName;
  if (!fs::is_directory(folder_)) {
    throw SystemError(describe_missing_checkpoint(folder_, is_checkpoint));
  }
  if (!fs::exists(path)) {
    throw DataError(str_cat(
        "[load_state] '",
        folder_.string(),
        "' is not a complete checkpoint: it has no ",
        kManifestName,
        ". Load another checkpoint"));
  }
  manifest_ = parse_manifest(read_text(path), path.string());
  for (const auto& [name, record] : manifest_.files) {
    find(name, record);
  }
}

fs::path CheckpointReader::path_of(const std::string& name) const {
  if (!manifest_.staged.empty()) {
    auto staged = folder_ / manifest_.staged / name;
    if (fs::exists(fs::symlink_status(staged))) {
      return staged;
    }
  }
  return folder_ / name;
}

std::optional<Manifest> CheckpointReader::rank_shard(int rank) const {
  const auto path = path_of(rank_shard_name(rank, manifest_.moment) + ".json");
  if (!fs::is_regular_file(fs::symlink_status(path))) {
    return std::nullopt;
  }
  auto shard = parse_manifest(read_text(path), path.string());
  if (shard.world_size != manifest_.world_size || shard.job != manifest_.job) {
    return std::nullopt; // of another run at the same moment
  }
  return shard;
}

void CheckpointReader::check_shards() const {
  std::set<int> begun;
  try {
    begun = ranks_beside(folder_, save_of(manifest_));
  } catch (const SystemError&) {
    // This user may have no access to the parent folder, where ranks write.
  }
  // Checkpoints without a job are older, and may contain one machine's ranks.
  const bool is_shared = !manifest_.is_of_machine && !manifest_.job.empty();
  for (int rank = 0; rank < manifest_.world_size; ++rank) {
    // The main process writes its own data before the manifest.
    const bool is_needed = is_shared && (manifest_.is_of_all || rank == 0);
    const auto mark = path_of(mark_name(rank, manifest_.moment, manifest_.job));
    const bool is_marked = fs::exists(fs::symlink_status(mark));
    if (!(is_needed || is_marked || begun.contains(rank)) || rank_shard(rank)) {
      continue;
    }
    // The paths which say that the rank had begun, if no process will finish
    // its part.
    std::vector<fs::path> signs;
    if (!is_needed) {
      if (begun.contains(rank)) {
        signs = abandoned_shards(folder_, save_of(manifest_), rank);
      }
      if (is_marked && (!begun.contains(rank) || !signs.empty())) {
        signs.push_back(mark);
      }
    }
    std::string names;
    for (const auto& sign : signs) {
      names += str_cat(names.empty() ? "'" : " and '", sign.string(), "'");
    }
    throw DataError(str_cat(
        "[load_state] The checkpoint '",
        folder_.string(),
        "' is incomplete: the data of rank ",
        rank,
        is_needed ? " is missing. Load another checkpoint"
                  : " was not fully written. Load another checkpoint",
        names.empty() ? ""
                      : str_cat(
                            ", or delete ",
                            names,
                            " to load this checkpoint without that data")));
  }
}

fs::path CheckpointReader::find(
    const std::string& name,
    const FileRecord& record) const {
  auto path = path_of(name);
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (!fs::is_regular_file(status)) {
    throw DataError(str_cat(
        "[load_state] The checkpoint '",
        folder_.string(),
        "' is damaged: '",
        name,
        fs::exists(status) ? "' is not a regular file" : "' is missing",
        ". Load another checkpoint"));
  }
  const auto size = fs::file_size(path, error);
  if (error || size != record.num_bytes) {
    throw DataError(str_cat(
        "[load_state] '",
        path.string(),
        "' is damaged: it has ",
        size,
        " bytes instead of ",
        record.num_bytes,
        ". Load another checkpoint"));
  }
  return path;
}

void CheckpointReader::check(
    const std::string& name,
    const FileRecord& record,
    std::span<const std::byte> bytes) const {
  const auto num_cores = std::thread::hardware_concurrency();
  parallel_for(record.num_chunks(), num_cores, [&](std::size_t chunk) {
    check_chunk(name, record, bytes, chunk);
  });
}

void CheckpointReader::check_chunk(
    const std::string& name,
    const FileRecord& record,
    std::span<const std::byte> bytes,
    std::size_t chunk) const {
  if (record.chunk != 0) {
    bytes = bytes.subspan(chunk * record.chunk);
    bytes = bytes.first(std::min<std::uint64_t>(bytes.size(), record.chunk));
  }
  populate(bytes);
  const auto expected =
      record.checksum.substr(chunk * kChecksumDigits, kChecksumDigits);
  if (checksum_of(bytes) != expected) {
    throw DataError(str_cat(
        "[load_state] '",
        path_of(name).string(),
        "' is damaged: its checksum does not match. Load another "
        "checkpoint"));
  }
}

void CheckpointReader::verify() const {
  const auto verify_files = [this](const Manifest& shard) {
    for (const auto& [name, record] : shard.files) {
      const MappedFile file(find(name, record), "load_state", "checkpoint");
      check(name, record, file.bytes());
    }
  };
  verify_files(manifest_);
  for (int rank = 0; rank < manifest_.world_size; ++rank) {
    if (const auto shard = rank_shard(rank)) {
      verify_files(*shard);
    }
  }
}

void read_checkpoint(
    const fs::path& folder,
    const std::function<void(const CheckpointReader& checkpoint)>& read) {
  // Files move after the new manifest has replaced the old one. A reader that
  // looks in between retries.
  constexpr int kMostTries = 100;
  for (int i = 1;; ++i) {
    const auto before = try_manifest(without_slash(folder));
    try {
      read(CheckpointReader(folder));
      return;
    } catch (const Error&) {
      const auto now = try_manifest(without_slash(folder));
      const bool is_replaced =
          before && now &&
          (!now->staged.empty() ||
           format_manifest(*before) != format_manifest(*now));
      if (!is_replaced || i == kMostTries) {
        throw;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool is_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(
      fs::symlink_status(folder / kManifestName, ignored));
}

bool has_rank_shards(const fs::path& folder) {
  const auto entries = entries_of(folder);
  return std::any_of(entries.begin(), entries.end(), is_rank_file);
}

void remove_checkpoint(const fs::path& folder) {
  const auto target = without_slash(folder);
  if (!remove_at_once(target)) {
    cannot_save("remove", target, std::strerror(errno));
  }
}

} // namespace accelerate
