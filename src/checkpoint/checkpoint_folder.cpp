// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "accelerate/error.h"
#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/str.h"
#include "base/unique_file.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "[save_state]";

[[noreturn]] void cannot(
    const std::string& what,
    const fs::path& path,
    const std::string& cause) {
  throw SystemError(str_cat(
      kWhere,
      " cannot ",
      what,
      " '",
      path.string(),
      "': ",
      cause,
      "; check the folder's rights and the space on the disk"));
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    cannot(
        "make the folder", path, error ? error.message() : "a file is there");
  }
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    entries.push_back(it->path());
  }
  return entries;
}

// By hand: libtorch.so exports a remove_all of its own, which programs that
// link it get in place of the standard library's, and which ends them.
void take_away(const fs::path& path) {
  std::error_code ignored; // What stays is tried again by the next save.
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    for (const auto& entry : entries_of(path)) {
      take_away(entry);
    }
  }
  fs::remove(path, ignored);
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    cannot("give its name to", to, std::strerror(errno));
  }
}

/// As the system understands it: ".." behind a link is not the folder before
/// it.
fs::path without_slash(const fs::path& path) {
  auto plain = fs::absolute(path);
  while (!plain.has_filename() && plain.has_relative_path()) {
    plain = plain.parent_path();
  }
  const auto name = plain.filename();
  return name == "." || name == ".." ? fs::weakly_canonical(plain) : plain;
}

std::string hidden(const fs::path& target) {
  return str_cat('.', target.filename().string());
}

/// Beside the target while there is none, inside of it where there is.
fs::path stage_of(const fs::path& target, std::int64_t moment) {
  if (fs::exists(target)) {
    return target / str_cat(".staged-", moment);
  }
  return target.parent_path() / str_cat(hidden(target), ".at-", moment, ".tmp");
}

/// Opens the folder and says that a living process writes there; nothing where
/// one does already, or nobody can tell.
UniqueFile try_lock(const fs::path& folder) {
  UniqueFile file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file && flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    const bool is_locked = errno == EWOULDBLOCK;
    file.reset();
    errno = is_locked ? EWOULDBLOCK : 0;
  }
  return file;
}

/// The same; throws where another process writes there.
UniqueFile lock(const fs::path& folder, const fs::path& target) {
  // Whoever looks for what killed runs have left holds it for a moment.
  constexpr int kMostTries = 20;
  for (int i = 0; i < kMostTries; ++i) {
    auto file = try_lock(folder);
    if (file || errno != EWOULDBLOCK) {
      return file;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw SystemError(str_cat(
      kWhere,
      " another process is saving to '",
      target.string(),
      "'; give each run a folder of its own"));
}

std::string read_text(const fs::path& path) {
  const MappedFile file(path, "load_state", "manifest");
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The manifest of the folder where it is whole.
std::optional<Manifest> try_manifest(const fs::path& folder) {
  try {
    const auto path = folder / kManifestName;
    return parse_manifest(read_text(path), path.string());
  } catch (const Error&) {
    return std::nullopt;
  }
}

void write_manifest(const fs::path& folder, const Manifest& manifest) {
  AtomicFile file(folder / kManifestName);
  file.write(format_manifest(manifest));
  file.commit();
}

/// By way of the stage, so that a kill leaves nothing of it in the target.
void replace_manifest(
    const fs::path& target,
    const fs::path& stage,
    const Manifest& manifest) {
  write_manifest(stage, manifest);
  rename_or_throw(stage / kManifestName, target / kManifestName);
  sync_folder(target);
}

/// Brings the files of a manifest that counts to their places.
void settle_files(const fs::path& target, Manifest& manifest) {
  if (manifest.staged.empty()) {
    return;
  }
  const auto stage = target / manifest.staged;
  for (const auto& entry : entries_of(stage)) {
    const auto place = target / entry.filename();
    if (entry.filename().string().starts_with('.')) {
      take_away(entry); // Half of a file.
      continue;
    }
    if (fs::is_directory(fs::symlink_status(place))) {
      take_away(place);
    }
    // A rank that came late may have brought it there already.
    if (rename(entry.c_str(), place.c_str()) != 0 &&
        (errno != ENOENT || !fs::exists(place))) {
      cannot("give its name to", place, std::strerror(errno));
    }
  }
  sync_folder(target);
  manifest.staged.clear();
  make_folder(stage);
  replace_manifest(target, stage, manifest);
  std::error_code ignored; // A rank that came late is still writing there.
  fs::remove(stage, ignored);
}

/// Whether nobody writes there any more. Two runs may save beside each other,
/// but not under one name, which throws; ranks of our own may be late or ahead.
bool is_left_behind(
    const fs::path& entry,
    const fs::path& target,
    std::int64_t moment) {
  const auto name = entry.filename().string();
  if (!name.starts_with('.') || !name.ends_with(".tmp")) {
    return false;
  }
  if (name.ends_with(".removed.tmp")) {
    return true;
  }
  const auto own = str_cat(hidden(target), ".at-");
  if (!name.starts_with(own) || name.find(".rank_") != std::string::npos) {
    return name.find(".at-") != std::string::npos &&
           !name.starts_with(str_cat(own, moment, '.')) && try_lock(entry);
  }
  if (name == str_cat(own, moment, ".tmp")) {
    return false;
  }
  lock(entry, target);
  return true;
}

/// Whether the checkpoint of this moment counts already.
bool is_there(const fs::path& target, std::int64_t moment) {
  const auto manifest = try_manifest(target);
  return manifest && manifest->moment == moment;
}

/// Manifests last. False where `to` is gone.
bool move_entries(std::vector<fs::path> entries, const fs::path& to) {
  std::stable_partition(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.extension() != ".json";
  });
  for (const auto& entry : entries) {
    const auto place = to / entry.filename();
    if (fs::is_directory(entry) && fs::is_directory(place)) {
      // Another rank's is there already.
      if (!move_entries(entries_of(entry), place)) {
        return false;
      }
      take_away(entry);
    } else if (rename(entry.c_str(), place.c_str()) != 0 && fs::exists(entry)) {
      if (errno == ENOENT) {
        return false;
      }
      cannot("give its name to", place, std::strerror(errno));
    }
  }
  return true;
}

bool is_part_of_a_rank(const fs::path& entry) {
  const auto name = entry.filename().string();
  return name.starts_with("rank_") && name.find("-at-") != std::string::npos;
}

/// As `rank_part_name` writes it.
bool is_of_moment(const fs::path& entry, std::int64_t moment) {
  return entry.filename().string().find(str_cat("-at-", moment, '.')) !=
         std::string::npos;
}

} // namespace

CheckpointWriter::CheckpointWriter(const fs::path& target, std::int64_t moment)
    : target_(without_slash(target)), moment_(moment) {
  make_folder(target_.parent_path());
  if (fs::exists(target_)) {
    if (!fs::is_directory(target_)) {
      cannot("make the folder", target_, "a file is there");
    }
    // A save that was killed after it had begun to count is ended first.
    if (auto manifest = try_manifest(target_)) {
      settle_files(target_, *manifest);
    }
  }
  stage_ = stage_of(target_, moment_);
  for (const auto& entry : entries_of(target_.parent_path())) {
    if (is_left_behind(entry, target_, moment_)) {
      take_away(entry);
    }
  }
  for (const auto& entry : entries_of(target_)) {
    if (entry != stage_ && entry.filename().string().starts_with(".staged-")) {
      lock(entry, target_);
      take_away(entry);
    }
  }
  make_folder(stage_);
  lock_ = lock(stage_, target_);
  // Halves of files, by a run that was killed here.
  for (const auto& entry : entries_of(stage_)) {
    if (entry.filename().string().starts_with('.')) {
      take_away(entry);
    }
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (!is_committed_) {
    take_away(stage_);
  }
}

void CheckpointWriter::commit(Manifest manifest) {
  manifest.staged.clear();
  if (stage_.parent_path() == target_) {
    commit_inside(manifest);
  } else {
    write_manifest(stage_, manifest);
    // Fails where somebody has filled the folder meanwhile.
    if (rename(stage_.c_str(), target_.c_str()) == 0) {
      sync_folder(target_.parent_path());
    } else if (errno == ENOTEMPTY || errno == EEXIST) {
      fs::remove(stage_ / kManifestName);
      const auto inside = stage_of(target_, moment_);
      take_away(inside);
      rename_or_throw(stage_, inside);
      stage_ = inside;
      commit_inside(manifest);
    } else {
      cannot("give its name to", target_, std::strerror(errno));
    }
  }
  is_committed_ = true;
}

void CheckpointWriter::commit_inside(Manifest& manifest) {
  const auto before = try_manifest(target_);
  manifest.staged = stage_.filename().string();
  replace_manifest(target_, stage_, manifest);
  is_committed_ = true;
  settle_files(target_, manifest);
  if (before) {
    for (const auto& [name, record] : before->files) {
      if (!manifest.files.contains(name)) {
        take_away(target_ / name);
      }
    }
  }
  for (const auto& entry : entries_of(target_)) {
    if (is_part_of_a_rank(entry) && !is_of_moment(entry, moment_)) {
      take_away(entry);
    }
  }
}

RankPlace::RankPlace(const fs::path& target, std::int64_t moment, int rank)
    : target_(without_slash(target)), moment_(moment) {
  folder_ = target_.parent_path() /
            str_cat(hidden(target_), ".at-", moment, ".rank_", rank, ".tmp");
  take_away(folder_);
  make_folder(folder_);
  lock_ = try_lock(folder_);
}

RankPlace::~RankPlace() {
  take_away(folder_);
}

void RankPlace::commit() {
  // A few times, as the place may become the checkpoint under our hands.
  constexpr int kMostTries = 20;
  std::string cause = "it goes away again and again";
  for (int i = 0; i < kMostTries; ++i) {
    const bool was_there = is_there(target_, moment_);
    const auto place = was_there ? target_ : stage_of(target_, moment_);
    std::error_code error;
    fs::create_directories(place, error);
    if (error) {
      cause = error.message();
      continue;
    }
    const auto own = entries_of(folder_);
    if (!move_entries(own, place)) {
      continue;
    }
    if (!was_there && is_there(target_, moment_) && fs::exists(place)) {
      // It had its name already, and we have made its place anew. What others
      // have there is theirs to move.
      std::vector<fs::path> moved;
      for (const auto& entry : own) {
        moved.push_back(place / entry.filename());
      }
      move_entries(moved, target_);
      std::error_code ignored; // Another rank does the same.
      fs::remove(place, ignored);
    }
    return;
  }
  cannot("add a rank's part to", target_, cause);
}

FileRecord record_of(const fs::path& file) {
  const MappedFile mapped(file, "save_state", "file of a checkpoint");
  return {mapped.bytes().size(), checksum_of(mapped.bytes())};
}

CheckpointReader::CheckpointReader(const fs::path& folder)
    : folder_(without_slash(folder)) {
  const auto path = folder_ / kManifestName;
  if (!fs::is_directory(folder_)) {
    throw SystemError(str_cat(
        "[load_state] there is no folder '",
        folder_.string(),
        "'; give the folder of a checkpoint"));
  }
  if (!fs::exists(path)) {
    throw DataError(str_cat(
        "[load_state] '",
        folder_.string(),
        "' has no ",
        kManifestName,
        ", so it is no checkpoint, or one that was not finished; take "
        "another"));
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

std::optional<Manifest> CheckpointReader::rank_part(int rank) const {
  const auto path = path_of(rank_part_name(rank, manifest_.moment) + ".json");
  if (!fs::is_regular_file(fs::symlink_status(path))) {
    return std::nullopt;
  }
  auto part = parse_manifest(read_text(path), path.string());
  if (part.world_size != manifest_.world_size) {
    return std::nullopt; // Of another run that had come as far.
  }
  return part;
}

fs::path CheckpointReader::find(
    const std::string& name,
    const FileRecord& record) const {
  auto path = path_of(name);
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (!fs::is_regular_file(status)) {
    throw DataError(str_cat(
        "[load_state] the checkpoint '",
        folder_.string(),
        fs::exists(status) ? "' has something else than a plain file as '"
                           : "' lacks its file '",
        name,
        "'; take another checkpoint"));
  }
  const auto size = fs::file_size(path, error);
  if (error || size != record.num_bytes) {
    throw DataError(str_cat(
        "[load_state] '",
        path.string(),
        "' has ",
        size,
        " bytes, expected ",
        record.num_bytes,
        "; it is cut off or was changed: take another checkpoint"));
  }
  return path;
}

void CheckpointReader::check(
    const std::string& name,
    const FileRecord& record,
    std::span<const std::byte> bytes) const {
  if (checksum_of(bytes) != record.checksum) {
    throw DataError(str_cat(
        "[load_state] '",
        path_of(name).string(),
        "' is damaged: its checksum is another than when it was saved; take "
        "another checkpoint"));
  }
}

void CheckpointReader::verify() const {
  const auto verify_part = [this](const Manifest& part) {
    for (const auto& [name, record] : part.files) {
      const MappedFile file(find(name, record), "load_state", "checkpoint");
      check(name, record, file.bytes());
    }
  };
  verify_part(manifest_);
  for (int rank = 0; rank < manifest_.world_size; ++rank) {
    if (const auto part = rank_part(rank)) {
      verify_part(*part);
    }
  }
}

void read_checkpoint(
    const fs::path& folder,
    const std::function<void(const CheckpointReader& checkpoint)>& read) {
  // Files move to their places after the manifest has said so: whoever comes
  // in between looks again.
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

bool has_rank_parts(const fs::path& folder) {
  const auto entries = entries_of(folder);
  return std::any_of(entries.begin(), entries.end(), is_part_of_a_rank);
}

std::vector<fs::path> complete_checkpoints(
    const fs::path& parent,
    const std::function<void(const std::string& what)>& complain) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const auto& entry : entries_of(parent)) {
    if (entry.filename().string().starts_with('.') || !is_checkpoint(entry)) {
      continue;
    }
    try {
      found.emplace_back(CheckpointReader(entry).manifest().saved_at, entry);
    } catch (const Error& error) {
      // Damaged or cut off: none to go on from.
      if (complain) {
        complain(error.what());
      }
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> folders;
  for (auto& [time, folder] : found) {
    folders.push_back(std::move(folder));
  }
  return folders;
}

std::optional<fs::path> newest_sound_checkpoint(
    const fs::path& parent,
    const std::function<void(const std::string& what)>& complain) {
  auto found = complete_checkpoints(parent, complain);
  while (!found.empty()) {
    try {
      read_checkpoint(found.back(), [](const CheckpointReader& checkpoint) {
        checkpoint.verify();
      });
      return found.back();
    } catch (const Error& error) {
      if (complain) {
        complain(error.what());
      }
      found.pop_back();
    }
  }
  return std::nullopt;
}

void remove_checkpoint(const fs::path& folder) {
  const auto target = without_slash(folder);
  const auto gone =
      target.parent_path() / str_cat(hidden(target), ".removed.tmp");
  take_away(gone);
  rename_or_throw(target, gone);
  take_away(gone);
}

} // namespace accelerate
