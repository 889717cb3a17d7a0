// SPDX-License-Identifier: Apache-2.0
// Two processes that watch each other, so that no worker outlives both.
#pragma once

#include <functional>

namespace accelerate {

/// Runs `body` in a child process and returns its exit code (128 + n if signal
/// n ended it).
///
/// The calling process becomes the guardian: it passes signals to the child,
/// and both adopt the orphans among their descendants. `body` gets a file from
/// which it reads each `Signal`, and which reaches its end when the guardian is
/// gone: `body` must then end everything below it. If the child ends first, the
/// guardian ends everything. So `kill -9` of either leaves nothing behind, not
/// even grandchildren in their own sessions.
///
/// With `is_contained`, the child is the first process of a PID namespace, so
/// that the kernel ends everything even if both are killed at once. Throws
/// `SystemError` if the system does not permit it.
///
/// Call it while the program has a single thread. `body` must not throw.
int run_guarded(
    const std::function<int(int lifeline)>& body,
    bool is_contained = false);

} // namespace accelerate
