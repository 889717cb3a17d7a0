// SPDX-License-Identifier: Apache-2.0
// Two processes that watch each other, so that no worker outlives both.
#pragma once

#include <functional>

#include "accelerate/export.h"

namespace accelerate {

/// Runs `body` in a child process and returns its exit code (128 + n where
/// signal n ended it).
///
/// The calling process becomes the guardian: it passes signals on to the child,
/// and both adopt the orphans among their descendants. `body` gets a file from
/// which it reads a `Signal` for each, and which is at its end once the
/// guardian is gone: it then has to end everything below it. Where the child
/// goes first, the guardian ends everything. So `kill -9` of either leaves
/// nothing behind, not even grandchildren in sessions of their own.
///
/// With `is_contained` the child is the first process of a PID namespace, so
/// that the kernel itself ends everything where both are killed at once. Throws
/// `SystemError` where the system does not allow it.
///
/// Call it while the program has one thread. `body` must not throw.
ACCELERATE_API int run_guarded(
    const std::function<int(int lifeline)>& body,
    bool is_contained = false);

} // namespace accelerate
