// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBeforeMoment = ".at-";
constexpr std::string_view kBeforeRank = ".rank_";
constexpr std::string_view kTemporaryEnd = ".tmp";
constexpr std::string_view kReadyEnd = ".ready.tmp";
constexpr std::string_view kRemovedEnd = ".removed.tmp";
constexpr std::string_view kInsideStart = ".staged-";
// Each try fails only if another process does something in that instant.
constexpr int kMostTries = 20;

std::string start_of(const fs::path& target, std::int64_t moment) {
  return str_cat('.', target.filename().string(), kBeforeMoment, moment);
}

std::string start_of(const fs::path& target, std::int64_t moment, int rank) {
  return str_cat(start_of(target, moment), kBeforeRank, rank);
}

/// What the name of a folder beside a target says.
struct StageName {
  std::string target;
  std::string moment;
  bool is_part = false;
  bool is_ready = false;
};

std::optional<StageName> parse_stage_name(std::string_view name) {
  const auto before = name.rfind(kBeforeMoment);
  if (!name.starts_with('.') || !name.ends_with(kTemporaryEnd) ||
      before == name.npos || before == 0) {
    return std::nullopt;
  }
  const auto rest = name.substr(before + kBeforeMoment.size());
  const auto moment = rest.substr(0, rest.find('.'));
  const auto end = rest.substr(moment.size());
  const bool is_part = end.starts_with(kBeforeRank);
  if (moment.empty() || (!is_part && end != kTemporaryEnd)) {
    return std::nullopt;
  }
  return StageName{
      std::string(name.substr(1, before - 1)),
      std::string(moment),
      is_part,
      is_part && end.ends_with(kReadyEnd)};
}

enum class LockState {
  kOurs,
  kOthers,
  /// The folder is not there, or no longer the one that was locked.
  kGone,
  /// The file system has no locks.
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
  // The owner may have renamed or removed it before we had the lock.
  if (!is_at(file, folder)) {
    return {LockState::kGone};
  }
  return {LockState::kOurs, std::move(file)};
}

/// Throws if another process keeps the lock.
FolderLock lock(const fs::path& folder, const fs::path& target) {
  // A process that looks for leftovers holds it for an instant.
  constexpr int kMostWaits = 50;
  constexpr std::chrono::milliseconds kWait{10};
  for (int i = 0; i < kMostWaits; ++i) {
    auto locked = try_lock(folder);
    if (locked.state != LockState::kOthers) {
      return locked;
    }
    std::this_thread::sleep_for(kWait);
  }
  throw SystemError(str_cat(
      "[save_state] another process is saving to '",
      target.string(),
      "'; give each run a folder of its own"));
}

/// Unlike `make_folder`, does not mind if another process removes it at once:
/// whoever locks it then knows.
void make_hidden_folder(const fs::path& path) {
  make_folder(path.parent_path());
  constexpr mode_t kForUmask = 0777;
  if (mkdir(path.c_str(), kForUmask) != 0 && errno != EEXIST &&
      errno != ENOENT) {
    cannot_save("make the folder", path, std::strerror(errno));
  }
}

/// Removes the folder unless a living process may have it. `is_own`: only this
/// run saves to its target, which decides on file systems without locks.
void remove_if_unlocked(const fs::path& folder, bool is_own) {
  const auto locked = try_lock(folder);
  if (locked.state == LockState::kOurs ||
      (locked.state == LockState::kUnknown && is_own)) {
    remove_at_once(folder);
  }
}

/// Nothing of a folder that cannot be read.
std::vector<fs::path> list(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    entries.push_back(it->path());
  }
  return entries;
}

/// Whether a living main process is going to take in this part.
bool has_writer(const fs::path& part, const StageName& name) {
  const auto parent = part.parent_path();
  const auto beside =
      str_cat('.', name.target, kBeforeMoment, name.moment, kTemporaryEnd);
  const auto inside = str_cat(kInsideStart, name.moment);
  return try_lock(parent / beside).state == LockState::kOthers ||
         try_lock(parent / name.target / inside).state == LockState::kOthers;
}

void remove_leftover(
    const fs::path& entry,
    const fs::path& target,
    std::int64_t moment) {
  const auto file_name = entry.filename().string();
  if (file_name.starts_with('.') && file_name.ends_with(kRemovedEnd)) {
    remove_tree(entry);
    return;
  }
  const auto name = parse_stage_name(file_name);
  if (!name) {
    return;
  }
  const bool is_own = name->target == target.filename();
  const bool is_now = is_own && name->moment == std::to_string(moment);
  if (name->is_part) {
    if (!(name->is_ready && is_now) && !has_writer(entry, *name)) {
      remove_if_unlocked(entry, name->is_ready && is_own);
    }
  } else if (!is_own) {
    remove_if_unlocked(entry, false);
  } else {
    const auto locked = lock(entry, target);
    remove_at_once(entry);
  }
}

/// A new name for the folder of a part that only this process uses.
std::string private_name(std::string_view start) {
  std::random_device random;
  return str_cat(start, '.', getpid(), '-', random(), kTemporaryEnd);
}

void move_entry(const fs::path& entry, const fs::path& place) {
  for (int i = 0; i < kMostTries; ++i) {
    if (rename(entry.c_str(), place.c_str()) == 0 || errno == ENOENT) {
      return; // ENOENT: another process has removed the checkpoint.
    }
    const int error = errno;
    if (fs::is_directory(entry) && fs::is_directory(place)) {
      // Another rank's is there already: join them.
      for (const auto& inner : entries_of(entry)) {
        move_entry(inner, place / inner.filename());
      }
      return;
    }
    if (error != EISDIR && error != ENOTDIR) {
      cannot_save("give its name to", place, std::strerror(error));
    }
    remove_tree(place); // A folder instead of a file, or the reverse.
  }
  cannot_save("give its name to", place, "another process makes it anew");
}

} // namespace

void cannot_save(
    const std::string& what,
    const fs::path& path,
    const std::string& cause) {
  throw SystemError(str_cat(
      "[save_state] cannot ",
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
    cannot_save(
        "make the folder", path, error ? error.message() : "a file is there");
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

// By hand: libtorch.so exports a remove_all of its own, which programs that
// link it get in place of the standard library's, and which ends them.
void remove_tree(const fs::path& path) {
  std::error_code ignored; // What stays is tried again by the next save.
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
    remove_tree(gone); // Of one that was killed here.
    if (rename(path.c_str(), gone.c_str()) == 0) {
      remove_tree(gone);
      return true;
    }
    if (errno == ENOENT) {
      return true; // Another process has removed it.
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
      break;
    }
  }
  return false;
}

fs::path stage_beside(const fs::path& target, std::int64_t moment) {
  return target.parent_path() /
         str_cat(start_of(target, moment), kTemporaryEnd);
}

fs::path stage_inside(const fs::path& target, std::int64_t moment) {
  return target / str_cat(kInsideStart, moment);
}

fs::path ready_part(const fs::path& target, std::int64_t moment, int rank) {
  return target.parent_path() /
         str_cat(start_of(target, moment, rank), kReadyEnd);
}

std::vector<fs::path> ready_parts(const fs::path& target, std::int64_t moment) {
  const auto start = str_cat(start_of(target, moment), kBeforeRank);
  auto entries = entries_of(target.parent_path());
  std::erase_if(entries, [&](const auto& entry) {
    const auto name = entry.filename().string();
    return !name.starts_with(start) || !name.ends_with(kReadyEnd);
  });
  return entries;
}

UniqueFile make_locked_folder(const fs::path& folder, const fs::path& target) {
  for (int i = 0; i < kMostTries; ++i) {
    make_hidden_folder(folder);
    auto locked = lock(folder, target);
    if (locked.state != LockState::kGone) {
      return std::move(locked.file);
    }
    // Another run has removed it as a leftover: it had no lock yet.
  }
  cannot_save("make the folder", folder, "it is removed again and again");
}

UniqueFile make_part_folder(
    const fs::path& target,
    std::int64_t moment,
    int rank,
    fs::path& folder) {
  const auto parent = target.parent_path();
  const auto start = start_of(target, moment, rank);
  // The main process removes them too, but not on file systems without locks.
  for (const auto& entry : entries_of(parent)) {
    const auto name = entry.filename().string();
    if (name.starts_with(start + '.') && !name.ends_with(kReadyEnd)) {
      remove_if_unlocked(entry, true);
    }
  }
  for (int i = 0; i < kMostTries; ++i) {
    // A name of its own: a rank never waits for whoever looks for leftovers.
    folder = parent / private_name(start);
    make_hidden_folder(folder);
    auto locked = try_lock(folder);
    if (locked.state == LockState::kOurs ||
        locked.state == LockState::kUnknown) {
      return std::move(locked.file);
    }
  }
  cannot_save("make the folder", folder, "it is removed again and again");
}

UniqueFile lock_folder(const fs::path& folder, const fs::path& target) {
  return lock(folder, target).file;
}

void remove_leftovers(const fs::path& target, std::int64_t moment) {
  for (const auto& entry : entries_of(target.parent_path())) {
    remove_leftover(entry, target, moment);
  }
  for (const auto& entry : entries_of(target)) {
    const auto name = entry.filename().string();
    if (name.starts_with(kInsideStart)) {
      const auto locked = lock(entry, target);
      remove_at_once(entry);
    }
  }
}

void take_in_part(
    const fs::path& part,
    const fs::path& to,
    const std::set<std::string>& kept) {
  const auto name = part.filename().string();
  const auto taken =
      part.parent_path() /
      private_name(name.substr(0, name.size() - kReadyEnd.size()));
  const auto locked = try_lock(part); // The rank may have ended.
  if (rename(part.c_str(), taken.c_str()) != 0) {
    if (errno == ENOENT) {
      return; // Another process has taken it.
    }
    cannot_save("take in", part, std::strerror(errno));
  }
  auto entries = entries_of(taken);
  std::erase_if(entries, [&](const auto& entry) {
    return kept.contains(entry.filename().string());
  });
  const auto manifests = std::stable_partition(
      entries.begin(), entries.end(), [](const auto& entry) {
        return entry.extension() != ".json";
      });
  // A reader must not find a manifest with other files than it lists.
  std::for_each(manifests, entries.end(), [&](const auto& entry) {
    unlink((to / entry.filename()).c_str());
  });
  for (const auto& entry : entries) {
    move_entry(entry, to / entry.filename());
  }
  remove_tree(taken);
}

} // namespace accelerate
