// SPDX-License-Identifier: Apache-2.0
// Who descends from a process, read from /proc.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Makes this process inherit the orphans among its descendants, also those
/// that left their session: a process cannot escape from `descendants_of`.
/// Throws `SystemError` where the kernel cannot. Also keeps the two files that
/// the functions below need, so that they work where no file can be opened.
ACCELERATE_API void adopt_orphans();

/// The living descendants of `root`, zombies left out, parents before their
/// children. Branches that start at a process of `except` are left out.
ACCELERATE_API std::vector<pid_t> descendants_of(
    pid_t root,
    const std::set<pid_t>& except = {});

/// Whether `signal` is in the set `name` ("ShdPnd", "SigCgt") of
/// /proc/<pid>/status; not where the process is gone.
ACCELERATE_API bool
has_signal_flag(pid_t pid, std::string_view name, int signal);

/// Whether the process waits for something, and `signal` does not wait for it.
ACCELERATE_API bool is_at_rest(pid_t pid, int signal);

/// "1234 (python3, state D)".
ACCELERATE_API std::string describe_process(pid_t pid);

/// Kills every descendant of this process and reaps its children until none
/// is left or `limit_ms` are over. For a process that called `adopt_orphans`
/// and has no other use for its children.
ACCELERATE_API void kill_all_descendants(int limit_ms);

} // namespace accelerate
