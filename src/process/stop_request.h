// SPDX-License-Identifier: Apache-2.0
// Whether somebody wants this process to end soon.
#pragma once

#include "accelerate/export.h"

namespace accelerate {

/// From now on SIGTERM and SIGUSR1 are remembered instead of ending the
/// process. One that the program itself handles or ignores stays as it is. The
/// first call counts; safe to call from any thread.
ACCELERATE_API void watch_for_stop_requests();
/// Whether one of them has come since.
ACCELERATE_API bool is_stop_requested();

} // namespace accelerate
