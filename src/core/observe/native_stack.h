// SPDX-License-Identifier: Apache-2.0
// Stacks of other threads in this process, without their cooperation.
#pragma once

#include <sys/types.h>

#include "core/base/internal.h"
#include "core/observe/report.h"

namespace accelerate {

/// Loads what unwinding needs, so that a signal handler can use it later.
void prepare_native_stacks();

/// The stack of `thread`, which is interrupted briefly by SIGURG, a signal that
/// programs without a handler ignore. Empty if the program has a handler, or
/// the thread does not answer. Files and lines come from addr2line, if it is
/// installed and the program has debug information. Otherwise, the stack has
/// only function names. From the user's innermost frame outwards, only the
/// user's frames are kept. Do not pass the calling thread.
ACCELERATE_INTERNAL Stack native_stack(pid_t thread);

} // namespace accelerate
