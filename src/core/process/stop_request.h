// SPDX-License-Identifier: Apache-2.0
// Whether this process was asked to end soon.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

/// Starts to record SIGTERM and SIGUSR1, which then do not end the process. A
/// signal that the program handles or ignores itself is not recorded. Later
/// calls have no effect. Thread-safe.
ACCELERATE_INTERNAL void watch_for_stop_requests();
/// Whether SIGTERM or SIGUSR1 has arrived since `watch_for_stop_requests`.
ACCELERATE_INTERNAL bool is_stop_requested();

} // namespace accelerate
