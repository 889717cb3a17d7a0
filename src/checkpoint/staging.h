// SPDX-License-Identifier: Apache-2.0
// The hidden folders that a checkpoint is written to before it counts.
//
//     .NAME.at-SAVE.tmp                main process: a new checkpoint
//     NAME/.staged-SAVE                main process: one that replaces another
//     .NAME.at-SAVE.rank_2.PID-N.tmp   rank 2's part, being written or taken in
//     .NAME.at-SAVE.rank_2.ready.tmp   rank 2's part, finished
//     ANY.removed.tmp                  being removed
//
// SAVE is the moment and the job: "7-HOST-PID-START-N" (`job_name.h`). Each
// folder has one owner, which holds a lock on it (`flock`) while it lives. A
// folder without a living owner was left behind by a killed run. File systems
// without locks decide by the job: it is dead if its process does not run any
// more, or, if that is on another machine, if the folder has not changed for an
// hour.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_file.h"

namespace accelerate {

/// Throws `SystemError`: cannot do `what` with `path`, because of `cause`.
[[noreturn]] void cannot_save(
    const std::string& what,
    const std::filesystem::path& path,
    const std::string& cause);

/// Throws `SystemError` unless the folder exists in the end.
void make_folder(const std::filesystem::path& path);
/// What is in the folder; nothing if it does not exist. Throws `SystemError`.
std::vector<std::filesystem::path> entries_of(
    const std::filesystem::path& folder);
/// Waits until the folder is on the disk, with all files and folders in it.
/// All at the same time: a file system with a journal writes
/// it once for them. Throws `SystemError`.
void sync_tree(const std::filesystem::path& folder);
/// The same for single files and folders.
void sync_all(const std::vector<std::filesystem::path>& paths);
/// Removes a file or a folder. What cannot be removed stays.
void remove_tree(const std::filesystem::path& path);
/// The same, but takes its name away first: nobody finds half of a folder.
/// Returns false, with the cause in `errno`, if it keeps its name.
bool remove_at_once(const std::filesystem::path& path);

/// What tells one save to a target from all others.
std::string save_name(std::int64_t moment, const std::string& job);

/// What the name of a folder beside a target says.
struct StageName {
  std::string target;
  std::string save;
  /// Of a rank's part.
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
std::filesystem::path ready_part(
    const std::filesystem::path& target,
    const std::string& save,
    int rank);
/// Parts of this save that ranks have finished.
std::vector<std::filesystem::path> ready_parts(
    const std::filesystem::path& target,
    const std::string& save);
/// Ranks whose parts of this save are begun, finished or being taken in.
std::set<int> ranks_beside(
    const std::filesystem::path& target,
    const std::string& save);

/// Makes the folder if it is missing and locks it. Throws `SystemError` if
/// another process has locked it. Holds nothing on file systems without locks.
UniqueFile make_locked_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& target);
/// Makes a folder for a rank to write its part to, and locks it. Removes what
/// the rank has left there before it was killed.
UniqueFile make_part_folder(
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
/// which the main process has written. If several processes try, one does it.
/// Drops the part if `to` does not exist any more. Throws `SystemError`.
void take_in_part(
    const std::filesystem::path& part,
    const std::filesystem::path& to,
    const std::set<std::string>& kept);

} // namespace accelerate
