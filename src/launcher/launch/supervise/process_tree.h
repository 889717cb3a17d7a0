// SPDX-License-Identifier: Apache-2.0
// The descendants of a process, read from /proc.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Makes this process inherit the orphans among its descendants, including
/// those in other sessions, so no process can escape from `descendants_of`.
/// Throws `SystemError` if the kernel does not support it. Also opens the two
/// files that the functions below need, so that they work even if no file can
/// be opened.
void adopt_orphans();

/// The living descendants of `root`, without zombies, parents before their
/// children. Subtrees of processes in `except` are omitted.
ACCELERATE_INTERNAL std::vector<pid_t> descendants_of(
    pid_t root,
    const std::set<pid_t>& except = {});

/// Whether `signal` is in the set `name` ("ShdPnd", "SigCgt") of
/// /proc/<pid>/status. False if the process is gone.
bool has_signal_flag(pid_t pid, std::string_view name, int signal);

/// Whether the process is sleeping and `signal` is not pending.
bool is_at_rest(pid_t pid, int signal);

/// "1234 (python3, state D)".
std::string describe_process(pid_t pid);

/// Kills every descendant of this process and reaps its children until none is
/// left or `limit_ms` are over. For a process that called `adopt_orphans` and
/// does not need its children otherwise.
void kill_all_descendants(int limit_ms);

} // namespace accelerate
