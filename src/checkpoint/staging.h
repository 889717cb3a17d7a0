// SPDX-License-Identifier: Apache-2.0
// The hidden folders that a checkpoint is written to before it counts.
//
//     .NAME.at-7.tmp                 main process: a checkpoint with a new name
//     NAME/.staged-7                 main process: one that replaces another
//     .NAME.at-7.rank_2.PID-N.tmp    rank 2's part, being written or taken in
//     .NAME.at-7.rank_2.ready.tmp    rank 2's part, finished
//     ANY.removed.tmp                being removed
//
// Each has one owner, which holds a lock on it (`flock`) while it lives. A
// folder without a living owner was left behind by a killed run.
#pragma once

#include <cstdint>
#include <filesystem>
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
/// Removes a file or a folder. What cannot be removed stays.
void remove_tree(const std::filesystem::path& path);
/// The same, but takes its name away first: nobody finds half of a folder.
/// Returns false, with the cause in `errno`, if it keeps its name.
bool remove_at_once(const std::filesystem::path& path);

std::filesystem::path stage_beside(
    const std::filesystem::path& target,
    std::int64_t moment);
std::filesystem::path stage_inside(
    const std::filesystem::path& target,
    std::int64_t moment);
std::filesystem::path
ready_part(const std::filesystem::path& target, std::int64_t moment, int rank);
/// The parts of this moment that ranks have finished.
std::vector<std::filesystem::path> ready_parts(
    const std::filesystem::path& target,
    std::int64_t moment);

/// Makes the folder if it is missing and locks it. Throws `SystemError` if
/// another process has locked it. Holds nothing on file systems without locks.
UniqueFile make_locked_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& target);
/// Makes a folder for a rank to write its part to, and locks it. Removes what
/// the rank has left there before it was killed.
UniqueFile make_part_folder(
    const std::filesystem::path& target,
    std::int64_t moment,
    int rank,
    std::filesystem::path& folder);
/// Locks a folder that may exist. Throws `SystemError` if another process has
/// locked it.
UniqueFile lock_folder(
    const std::filesystem::path& folder,
    const std::filesystem::path& target);

/// Removes leftovers of killed runs beside the target and inside it, except
/// finished parts of this moment. Throws `SystemError` if another process is
/// saving to the target.
void remove_leftovers(const std::filesystem::path& target, std::int64_t moment);

/// Moves a finished part into the folder `to`, except the files in `kept`,
/// which the main process has written. If several processes try, one does it.
/// Drops the part if `to` does not exist any more. Throws `SystemError`.
void take_in_part(
    const std::filesystem::path& part,
    const std::filesystem::path& to,
    const std::set<std::string>& kept);

} // namespace accelerate
