// SPDX-License-Identifier: Apache-2.0
// Large blocks of host memory that the system gets back.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "accelerate/export.h"

namespace accelerate {

/// Blocks below this size come from torch's own allocator.
inline constexpr std::size_t kSmallestPages = std::size_t{1} << 20;

/// Takes large blocks straight from the system. `malloc` would put blocks that
/// come and go in every step between others that stay, and its heap would grow.
/// Keeps the two blocks of each size that were freed last, so that a step finds
/// its pages ready. Serves all threads.
ACCELERATE_API c10::Allocator& page_allocator();

} // namespace accelerate
