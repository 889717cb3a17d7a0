// SPDX-License-Identifier: Apache-2.0
// A PID namespace around everything that a launcher starts.
#pragma once

#include "accelerate/export.h"

namespace accelerate {

/// The next child of this process will be the first of a PID namespace: when
/// it ends, the kernel kills everything in it. Users other than root get a
/// user namespace for it, in which they are themselves. Throws `SystemError`
/// where the system does not allow it.
ACCELERATE_API void prepare_containment();

/// To be called by that child: it ends with its parent, and sees a /proc of its
/// own. Throws `SystemError`.
ACCELERATE_API void enter_containment();

} // namespace accelerate
