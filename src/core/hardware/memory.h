// SPDX-License-Identifier: Apache-2.0
// Memory and limits of this machine.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/internal.h"

namespace accelerate {

struct MemoryFigures {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
  /// Size of /dev/shm. Unset if it is not mounted.
  std::optional<int64_t> shared_total_bytes = {};
  std::optional<int64_t> shared_free_bytes = {};
};

ACCELERATE_INTERNAL MemoryFigures read_memory();

/// How many files this process may open (soft limit), and how far it can raise
/// this limit itself (hard limit). -1 means unlimited.
struct FileLimits {
  int64_t soft = 0;
  int64_t hard = 0;
};
ACCELERATE_INTERNAL FileLimits read_file_limits();

} // namespace accelerate
