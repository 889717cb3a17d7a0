// SPDX-License-Identifier: Apache-2.0
// A parallel loop.
#pragma once

#include <cstddef>
#include <functional>

#include "core/base/internal.h"

namespace accelerate {

/// Calls `work(0)` to `work(count - 1)` on at most `max_threads` threads,
/// including the calling one, or on fewer if the system has no more. Returns
/// when all calls have ended. Rethrows the exception of the call with the
/// lowest index.
ACCELERATE_INTERNAL void parallel_for(
    std::size_t count,
    std::size_t max_threads,
    const std::function<void(std::size_t)>& work);

} // namespace accelerate
