// SPDX-License-Identifier: Apache-2.0
// The hidden folders that a checkpoint is written to before its commit.
//
//     .NAME.at-SAVE.tmp                main process: a new checkpoint
//     NAME/.staged-SAVE                main process: one that replaces another
//     .NAME.at-SAVE.rank_2.PID-N.tmp   rank 2's part, being written or merged
//     .NAME.at-SAVE.rank_2.ready.tmp   rank 2's part, finished
//     ANY.removed.tmp                  being removed
//
// SAVE consists of the moment and the job: "7-HOST-PID-START-N" (`job_name.h`).
// Each folder has one owner, which holds a lock on it (`flock`) while it is
// alive. A folder without a living owner was left by a killed run. On file
// systems without locks, the owner counts as dead if the job's process no
// longer runs. If that process ran on another machine, the owner counts as dead
// if the folder has not changed for an hour.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/unique_file.h"

namespace accelerate {

/// Throws `SystemError`: cannot do `what` with `path`, because of `cause`.
[[noreturn]] void cannot_save(
    const std::string& what,
    const std::filesystem::path& path,
    const std::string& cause);

/// Throws `SystemError` unless the folder exists afterwards.
void make_folder(const std::filesystem::path& path);
/// The entries of the folder. Empty if it does not exist. Throws `SystemError`.
std::vector<std::filesystem::path> entries_of(
    const std::filesystem::path& folder);
/// Syncs the folder with all its contents to disk. All files are synced at the
/// same time, because a journaling file system then commits its journal once.
/// Throws `SystemError`.
void sync_tree(const std::filesystem::path& folder);
/// Syncs these files and the names in these folders. Throws `SystemError`.
void sync_all(const std::vector<std::filesystem::path>& paths);
/// Removes a file or a folder, or as much of it as possible.
void remove_tree(const std::filesystem::path& path);
/// Like `remove_tree`, but renames `path` first, so that no process sees a
/// partial folder. Returns false, with the cause in `errno`, if it cannot be
/// renamed.
bool remove_at_once(const std::filesystem::path& path);

/// The name that distinguishes a save to a target from all others.
std::string save_name(std::int64_t moment, const std::string& job);

/// The parsed name of a folder next to a target.
struct StageName {
  std::string target;
  std::string save;
  /// The rank, if the folder contains a rank's part.
  std::optional<int> rank = {};
  bool is_ready = false;
};
std::optional<StageName> parse_stage_name(const std::filesystem::path& folder);

std::filesystem::path stage_beside(
    const std::filesystem::path& target,
    const std::string& save);
std::filesystem::path stage_inside(
    const std::filesystem::path& target,
    const std::string& save);
std::filesystem::path ready_shard(
    const std::filesystem::path& target,
    const std::string& save,
    int rank);
/// Parts of this save that ranks have finished.
std::vector<std::filesystem::path> ready_shards(
    const std::filesystem::path& target,
    const std::string& save);
/// The ranks whose parts of this save are begun, finished or being merged.
std::set<int> ranks_beside(
    const std::filesystem::path& target,
    const std::string& save);

/// The folders in which a killed rank was writing its part of this save. Empty
/// if the rank is still writing.
std::vector<std::filesystem::path> abandoned_shards(
    const std::filesystem::path& target,
    const std::string& save,
    int rank);

/// Creates the folder if missing and locks it. Throws `SystemError` if another
/// process has locked it. Returns an empty file on file systems without locks.
UniqueFile make_locked_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& target);
/// Creates and locks a folder for a rank to write its part to. Removes what the
/// rank left there when it was killed.
UniqueFile make_shard_folder(
    const std::filesystem::path& target,
    const std::string& save,
    int rank,
    std::filesystem::path& folder);
/// Locks a folder that may exist. Throws `SystemError` if another process has
/// locked it.
UniqueFile lock_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& target);

/// Removes what killed runs left next to the target and inside it. Keeps parts
/// of this save and the folder `own`. Throws `SystemError` if another process
/// is saving to the target.
void remove_leftovers(
    const std::filesystem::path& target,
    const std::string& save,
    const std::filesystem::path& own = {});

/// Moves a finished part into the folder `to`, except the files in `kept`,
/// which the main process has written. If several processes try, only one of
/// them moves it. Drops the part if `to` no longer exists. Throws
/// `SystemError`.
void merge_shard(
    const std::filesystem::path& shard,
    const std::filesystem::path& to,
    const std::set<std::string>& kept);

} // namespace accelerate
