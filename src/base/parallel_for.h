// SPDX-License-Identifier: Apache-2.0
// A loop whose turns run on several threads.
#pragma once

#include <cstddef>
#include <functional>

#include "accelerate/export.h"

namespace accelerate {

/// Calls `work(0)` to `work(count - 1)`, on at most `max_threads` threads, the
/// calling one among them. If the system has no more threads, fewer do the
/// work. Returns when all calls have ended. Throws what a call has thrown, the
/// one with the lowest index first.
ACCELERATE_API void parallel_for(
    std::size_t count,
    std::size_t max_threads,
    const std::function<void(std::size_t)>& work);

} // namespace accelerate
