// SPDX-License-Identifier: Apache-2.0
// An allocator for large blocks of host memory.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "core/base/internal.h"

namespace accelerate {

/// Smaller blocks come from torch's own allocator.
inline constexpr std::size_t kSmallestPages = std::size_t{1} << 20;

/// Allocates large blocks directly from the system. `malloc` would put blocks
/// that each step allocates and frees between long-lived ones, and its heap
/// would grow. Keeps the two most recently freed blocks of each size, so that a
/// step can reuse mapped pages. Thread-safe.
ACCELERATE_INTERNAL c10::Allocator& page_allocator();

} // namespace accelerate
