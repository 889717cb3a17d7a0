// SPDX-License-Identifier: Apache-2.0
// What the kernel says of a process: /proc/PID/stat, see proc(5).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

struct ProcessStat {
  /// R, S, D, Z, T, t, X, I.
  char state = '?';
  pid_t parent = 0;
  /// In clock ticks since the machine started.
  uint64_t start_time = 0;
  /// The memory that /proc/PID/cmdline shows; 0 if this user may not know.
  uintptr_t arguments_begin = 0;
  uintptr_t arguments_end = 0;
};

/// Nothing if `text` is not the content of such a file.
ACCELERATE_API std::optional<ProcessStat> parse_process_stat(
    const std::string& text);
/// `pid` may be "self". Returns nothing if the process does not exist or /proc
/// is not mounted.
ACCELERATE_API std::optional<ProcessStat> read_process_stat(
    const std::string& pid);

} // namespace accelerate
