// SPDX-License-Identifier: Apache-2.0
// The kernel's information on a process: /proc/PID/stat, see proc(5).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

struct ProcessStat {
  /// The state of the process: R, S, D, Z, T, t, X or I.
  char state = '?';
  pid_t parent = 0;
  /// The start of the process, in clock ticks since boot.
  uint64_t start_time = 0;
  /// Address of the memory shown in /proc/PID/cmdline. 0 if this user has no
  /// access.
  uintptr_t arguments_begin = 0;
  uintptr_t arguments_end = 0;
};

/// Parses the content of /proc/PID/stat. Empty if `text` is something else.
ACCELERATE_INTERNAL std::optional<ProcessStat> parse_process_stat(
    const std::string& text);
/// Reads /proc/PID/stat. `pid` may be "self". Empty if the process does not
/// exist or /proc is not mounted.
ACCELERATE_INTERNAL std::optional<ProcessStat> read_process_stat(
    const std::string& pid);

} // namespace accelerate
