// SPDX-License-Identifier: Apache-2.0
// Whether this process was asked to end soon.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

/// From now on, SIGTERM and SIGUSR1 are recorded instead of ending the process,
/// unless the program handles or ignores them itself. Later calls have no
/// effect. Thread-safe.
ACCELERATE_INTERNAL void watch_for_stop_requests();
/// Whether one of them has arrived since.
ACCELERATE_INTERNAL bool is_stop_requested();

} // namespace accelerate
