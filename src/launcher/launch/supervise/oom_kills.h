// SPDX-License-Identifier: Apache-2.0
// Whether the kernel killed a process because memory ran out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

/// The file with the `oom_kill` counter of this process's control group:
/// `memory.events` (version 2) or `memory.oom_control` (version 1). `groups` is
/// a file such as /proc/self/cgroup, `root` the mount point of control groups.
/// Empty if there is none.
ACCELERATE_INTERNAL std::filesystem::path oom_counter_file(
    const std::filesystem::path& groups = "/proc/self/cgroup",
    const std::filesystem::path& root = "/sys/fs/cgroup");

/// Detects kills after its construction.
class ACCELERATE_INTERNAL OomKills {
 public:
  explicit OomKills(std::filesystem::path counter = oom_counter_file());

  /// Whether `pid` may have been killed because memory ran out: the counter has
  /// increased, or the kernel's log, if this user may read it, names `pid`.
  bool may_have_killed(pid_t pid);

 private:
  std::filesystem::path counter_;
  int64_t before_ = 0;
  UniqueFile log_;
};

} // namespace accelerate
