// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include "accelerate/error.h"
#include "core/base/atomic_file.h"
#include "core/base/parallel_for.h"
#include "core/base/str.h"
#include "core/checkpoint/job_name.h"
#include "core/checkpoint/manifest.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBeforeSave = ".at-";
constexpr std::string_view kBeforeRank = ".rank_";
constexpr std::string_view kTemporaryEnd = ".tmp";
constexpr std::string_view kReadyEnd = ".ready.tmp";
constexpr std::string_view kRemovedEnd = ".removed.tmp";
constexpr std::string_view kInsideStart = ".staged-";
// A try only fails if another process intervenes at that moment.
constexpr int kMostTries = 20;

std::string start_of(const fs::path& target, const std::string& save) {
  return str_cat('.', target.filename().string(), kBeforeSave, save);
}

std::string
start_of(const fs::path& target, const std::string& save, int rank) {
  return str_cat(start_of(target, save), kBeforeRank, rank);
}

std::string job_of(const std::string& save) {
  const auto dash = save.find('-');
  return dash == std::string::npos ? "" : save.substr(dash + 1);
}

/// The entries of the folder; empty if it cannot be read.
std::vector<fs::path> list(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    entries.push_back(it->path());
  }
  return entries;
}

enum class LockState {
  kOurs,
  kOthers,
  /// The folder does not exist, or is no longer the one that was locked.
  kGone,
  /// The file system does not support locks.
  kUnknown,
};

struct FolderLock {
  LockState state = LockState::kGone;
  UniqueFile file = {};
};

bool is_at(const UniqueFile& file, const fs::path& path) {
  struct stat opened = {};
  struct stat found = {};
  return fstat(file.get(), &opened) == 0 && stat(path.c_str(), &found) == 0 &&
         opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
}

FolderLock try_lock(const fs::path& folder) {
  UniqueFile file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) {
    return {errno == ENOENT ? LockState::kGone : LockState::kUnknown};
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return {errno == EWOULDBLOCK ? LockState::kOthers : LockState::kUnknown};
  }
  // The owner may have renamed or removed it before this process got the lock.
  if (!is_at(file, folder)) {
    return {LockState::kGone};
  }
  return {LockState::kOurs, std::move(file)};
}

/// The name of the save whose main process writes to this folder.
std::string save_of(const fs::path& stage) {
  const auto name = stage.filename().string();
  const auto parsed = parse_stage_name(stage);
  return parsed                           ? parsed->save
         : name.starts_with(kInsideStart) ? name.substr(kInsideStart.size())
                                          : "";
}

[[noreturn]] void refuse_second_job(
    const fs::path& stage,
    const fs::path& target) {
  throw SystemError(str_cat(
      "[save_state] '",
      target.string(),
      "' is in use: ",
      describe_job(job_of(save_of(stage))),
      " is saving to it. Use a separate folder for each run"));
}

/// Whether the folder or anything in it has changed within the last hour.
bool has_changed_lately(const fs::path& folder) {
  constexpr std::chrono::hours kLongest{1};
  const auto is_new = [&](const fs::path& path) {
    std::error_code error;
    const auto time = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - time < kLongest;
  };
  std::error_code ignored;
  const auto entries = list(folder, ignored);
  return is_new(folder) || std::any_of(entries.begin(), entries.end(), is_new);
}

/// Whether the job that created the folder may still be running.
bool may_run(const fs::path& folder, const std::string& save) {
  const auto job = job_of(save);
  if (job.empty()) {
    return false;
  }
  const auto known = is_job_alive(job);
  return known ? *known : has_changed_lately(folder);
}

/// Throws if another process keeps the lock.
FolderLock lock(const fs::path& folder, const fs::path& target) {
  // A process that looks for leftovers holds it only briefly.
  constexpr int kMostWaits = 50;
  constexpr std::chrono::milliseconds kWait{10};
  for (int i = 0; i < kMostWaits; ++i) {
    auto locked = try_lock(folder);
    if (locked.state != LockState::kOthers) {
      return locked;
    }
    std::this_thread::sleep_for(kWait);
  }
  refuse_second_job(folder, target);
}

/// Like `lock`, but for the folder of another save. Also throws if its job may
/// still write.
FolderLock lock_abandoned(
    const fs::path& folder,
    const fs::path& target,
    const std::string& own_save) {
  auto locked = lock(folder, target);
  const auto save = save_of(folder);
  if (locked.state == LockState::kUnknown && job_of(save) != job_of(own_save) &&
      may_run(folder, save)) {
    refuse_second_job(folder, target);
  }
  return locked;
}

/// Unlike `make_folder`, accepts that another process removes the folder
/// immediately. Locking the folder detects that.
void make_hidden_folder(const fs::path& path) {
  make_folder(path.parent_path());
  constexpr mode_t kForUmask = 0777;
  if (mkdir(path.c_str(), kForUmask) != 0 && errno != EEXIST &&
      errno != ENOENT) {
    cannot_save("create the folder", path, std::strerror(errno));
  }
}

/// Removes the folder unless it may belong to a living process. `is_own`: only
/// this run saves to the target, so the folder can be removed on file systems
/// without locks.
void remove_if_unlocked(const fs::path& folder, bool is_own) {
  const auto locked = try_lock(folder);
  if (locked.state == LockState::kOurs ||
      (locked.state == LockState::kUnknown && is_own)) {
    remove_at_once(folder);
  }
}

/// Whether a living main process is going to merge this part.
bool has_writer(const fs::path& shard, const StageName& name) {
  const auto target = shard.parent_path() / name.target;
  return try_lock(stage_beside(target, name.save)).state ==
             LockState::kOthers ||
         try_lock(stage_inside(target, name.save)).state == LockState::kOthers;
}

void remove_leftover(
    const fs::path& entry,
    const fs::path& target,
    const std::string& save) {
  const auto file_name = entry.filename().string();
  if (file_name.starts_with('.') && file_name.ends_with(kRemovedEnd)) {
    remove_tree(entry);
    return;
  }
  const auto name = parse_stage_name(entry);
  if (!name) {
    return;
  }
  const bool is_own = name->target == target.filename();
  if (!name->rank) {
    if (is_own) {
      const auto locked = lock_abandoned(entry, target, save);
      remove_at_once(entry);
    } else {
      remove_if_unlocked(entry, false);
    }
    return;
  }
  const bool is_of_this = is_own && name->save == save;
  const bool is_of_living_job =
      job_of(name->save) != job_of(save) && may_run(entry, name->save);
  if (!is_of_this && !is_of_living_job && !has_writer(entry, *name)) {
    remove_if_unlocked(entry, name->is_ready && is_own);
  }
}

/// A new folder name for a part that only this process uses.
std::string private_name(std::string_view start) {
  std::random_device random;
  return str_cat(start, '.', getpid(), '-', random(), kTemporaryEnd);
}

void add_files_and_folders(
    const fs::path& folder,
    std::vector<fs::path>& found) {
  found.push_back(folder);
  for (const auto& entry : entries_of(folder)) {
    const auto status = fs::symlink_status(entry);
    if (fs::is_directory(status)) {
      add_files_and_folders(entry, found);
    } else if (fs::is_regular_file(status)) {
      found.push_back(entry);
    }
  }
}

void move_entry(const fs::path& entry, const fs::path& destination) {
  for (int i = 0; i < kMostTries; ++i) {
    if (rename(entry.c_str(), destination.c_str()) == 0 || errno == ENOENT) {
      return; // ENOENT: another process removed the checkpoint
    }
    const int error = errno;
    if (fs::is_directory(entry) && fs::is_directory(destination)) {
      // Another rank's folder is already there: merge into it.
      for (const auto& inner : entries_of(entry)) {
        move_entry(inner, destination / inner.filename());
      }
      return;
    }
    if (error != EISDIR && error != ENOTDIR) {
      cannot_save("rename a file to", destination, std::strerror(error));
    }
    remove_tree(destination); // a folder instead of a file, or the reverse
  }
  cannot_save(
      "rename a file to", destination, "another process keeps recreating it");
}

} // namespace

void cannot_save(
    const std::string& what,
    const fs::path& path,
    const std::string& cause) {
  throw SystemError(str_cat(
      "[save_state] Cannot ",
      what,
      " '",
      path.string(),
      "': ",
      cause,
      ". Check the permissions of the folder and the free disk space"));
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    cannot_save(
        "create the folder",
        path,
        error ? error.message() : "a file with this name exists");
  }
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  auto entries = list(folder, error);
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    cannot_save("list the folder", folder, error.message());
  }
  return entries;
}

void sync_tree(const fs::path& folder) {
  std::vector<fs::path> found;
  add_files_and_folders(folder, found);
  sync_all(found);
}

void sync_all(const std::vector<fs::path>& paths) {
  constexpr std::size_t kMostThreads = 16;
  parallel_for(paths.size(), kMostThreads, [&](std::size_t i) {
    const auto& path = paths[i];
    if (fs::is_directory(fs::symlink_status(path))) {
      sync_folder(path);
      return;
    }
    const UniqueFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file || fsync(file.get()) != 0) {
      cannot_save("write to the disk", path, std::strerror(errno));
    }
  });
}

// Implemented here because libtorch.so exports its own
// std::filesystem::remove_all, which replaces the standard library's in
// programs that link it, and crashes.
void remove_tree(const fs::path& path) {
  std::error_code ignored; // the next save tries again
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    for (const auto& entry : list(path, ignored)) {
      remove_tree(entry);
    }
  }
  fs::remove(path, ignored);
}

bool remove_at_once(const fs::path& path) {
  const auto name = path.filename().string();
  const auto gone =
      path.parent_path() /
      str_cat(name.starts_with('.') ? "" : ".", name, kRemovedEnd);
  for (int i = 0; i < kMostTries; ++i) {
    remove_tree(gone); // left by a process killed here
    if (rename(path.c_str(), gone.c_str()) == 0) {
      remove_tree(gone);
      return true;
    }
    if (errno == ENOENT) {
      return true; // another process removed it
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
      break;
    }
  }
  return false;
}

std::string save_name(std::int64_t moment, const std::string& job) {
  return str_cat(moment, job.empty() ? "" : "-", job);
}

std::optional<StageName> parse_stage_name(const fs::path& folder) {
  const auto name = folder.filename().string();
  const auto before = name.rfind(kBeforeSave);
  if (!name.starts_with('.') || !name.ends_with(kTemporaryEnd) ||
      name.ends_with(kRemovedEnd) || before == name.npos || before == 0) {
    return std::nullopt;
  }
  const auto rest = name.substr(before + kBeforeSave.size());
  StageName found = {
      name.substr(1, before - 1), rest.substr(0, rest.find('.'))};
  const auto end = rest.substr(found.save.size());
  if (end.starts_with(kBeforeRank)) {
    const auto digits = end.substr(kBeforeRank.size());
    const auto count = digits.find_first_not_of("0123456789");
    if (count == 0 || count > 9) {
      return std::nullopt;
    }
    found.rank = std::stoi(digits.substr(0, count));
    found.is_ready = end.ends_with(kReadyEnd);
  } else if (end != kTemporaryEnd) {
    return std::nullopt;
  }
  return found.save.empty() ? std::nullopt : std::optional(found);
}

fs::path stage_beside(const fs::path& target, const std::string& save) {
  return target.parent_path() / str_cat(start_of(target, save), kTemporaryEnd);
}

fs::path stage_inside(const fs::path& target, const std::string& save) {
  return target / str_cat(kInsideStart, save);
}

fs::path
ready_shard(const fs::path& target, const std::string& save, int rank) {
  return target.parent_path() /
         str_cat(start_of(target, save, rank), kReadyEnd);
}

std::vector<fs::path> ready_shards(
    const fs::path& target,
    const std::string& save) {
  const auto start = str_cat(start_of(target, save), kBeforeRank);
  auto entries = entries_of(target.parent_path());
  std::erase_if(entries, [&](const auto& entry) {
    const auto name = entry.filename().string();
    return !name.starts_with(start) || !name.ends_with(kReadyEnd);
  });
  return entries;
}

std::set<int> ranks_beside(const fs::path& target, const std::string& save) {
  std::set<int> ranks;
  for (const auto& entry : entries_of(target.parent_path())) {
    const auto name = parse_stage_name(entry);
    if (name && name->rank && name->target == target.filename() &&
        name->save == save) {
      ranks.insert(*name->rank);
    }
  }
  return ranks;
}

std::vector<fs::path>
abandoned_shards(const fs::path& target, const std::string& save, int rank) {
  std::vector<fs::path> found;
  for (const auto& entry : entries_of(target.parent_path())) {
    const auto name = parse_stage_name(entry);
    if (!name || name->rank != rank || name->target != target.filename() ||
        name->save != save) {
      continue;
    }
    const auto state = try_lock(entry).state;
    if (state == LockState::kOthers ||
        (state == LockState::kUnknown && may_run(entry, save))) {
      return {};
    }
    found.push_back(entry);
  }
  return found;
}

UniqueFile make_locked_folder(const fs::path& folder, const fs::path& target) {
  for (int i = 0; i < kMostTries; ++i) {
    make_hidden_folder(folder);
    auto locked = lock(folder, target);
    if (locked.state != LockState::kGone) {
      return std::move(locked.file);
    }
    // Another run has removed the folder as a leftover, because it was not
    // locked yet.
  }
  cannot_save("create the folder", folder, "another process keeps removing it");
}

UniqueFile make_shard_folder(
    const fs::path& target,
    const std::string& save,
    int rank,
    fs::path& folder) {
  const auto parent = target.parent_path();
  const auto start = start_of(target, save, rank);
  // The main process also removes these folders, but not on file systems
  // without locks.
  for (const auto& entry : entries_of(parent)) {
    const auto name = entry.filename().string();
    if (name.starts_with(start + '.') && !name.ends_with(kReadyEnd)) {
      remove_if_unlocked(entry, true);
    }
  }
  for (int i = 0; i < kMostTries; ++i) {
    // The name is unique, so that a rank never waits for a process that is
    // looking for leftovers.
    folder = parent / private_name(start);
    make_hidden_folder(folder);
    auto locked = try_lock(folder);
    if (locked.state == LockState::kOurs ||
        locked.state == LockState::kUnknown) {
      return std::move(locked.file);
    }
  }
  cannot_save("create the folder", folder, "another process keeps removing it");
}

UniqueFile lock_folder(const fs::path& folder, const fs::path& target) {
  return lock(folder, target).file;
}

void remove_leftovers(
    const fs::path& target,
    const std::string& save,
    const fs::path& own) {
  for (const auto& entry : entries_of(target.parent_path())) {
    if (entry != own) {
      remove_leftover(entry, target, save);
    }
  }
  for (const auto& entry : entries_of(target)) {
    const auto name = entry.filename().string();
    if (name.starts_with(kInsideStart) && entry != own) {
      const auto locked = lock_abandoned(entry, target, save);
      remove_at_once(entry);
    }
  }
}

void merge_shard(
    const fs::path& shard,
    const fs::path& to,
    const std::set<std::string>& kept) {
  const auto name = shard.filename().string();
  const auto taken =
      shard.parent_path() /
      private_name(name.substr(0, name.size() - kReadyEnd.size()));
  const auto locked = try_lock(shard); // the rank may have ended
  if (rename(shard.c_str(), taken.c_str()) != 0) {
    if (errno == ENOENT) {
      return; // another process took it
    }
    cannot_save("move", shard, std::strerror(errno));
  }
  auto entries = entries_of(taken);
  std::erase_if(entries, [&](const auto& entry) {
    return kept.contains(entry.filename().string());
  });
  const auto manifests = std::stable_partition(
      entries.begin(), entries.end(), [](const auto& entry) {
        return entry.extension() != ".json";
      });
  // Remove old manifests first and move new ones last: a reader must not find a
  // manifest whose files do not match its list.
  std::for_each(manifests, entries.end(), [&](const auto& entry) {
    unlink((to / entry.filename()).c_str());
  });
  for (const auto& entry : entries) {
    move_entry(entry, to / entry.filename());
  }
  if (const auto stage = parse_stage_name(shard); stage && stage->rank) {
    const auto mark =
        mark_name(*stage->rank, std::stoll(stage->save), job_of(stage->save));
    unlink((to / mark).c_str());
  }
  remove_tree(taken);
}

} // namespace accelerate
