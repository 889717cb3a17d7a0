// SPDX-License-Identifier: Apache-2.0
// Where a thread of this process is, without its help.
#pragma once

#include <sys/types.h>

#include "accelerate/export.h"
#include "observe/report.h"

namespace accelerate {

/// Loads what unwinding needs, so that a handler of signals may do it later.
void prepare_native_stacks();

/// The stack of `thread`, which a signal interrupts for a moment: SIGURG, which
/// means nothing to programs that have no handler for it. Empty where the
/// program has one, or the thread does not answer. Files and lines come from
/// addr2line where it is installed and the program has them, else there are
/// names of functions. What lies between and outside of the user's frames is
/// left out. Not for the calling thread.
ACCELERATE_API Stack native_stack(pid_t thread);

} // namespace accelerate
