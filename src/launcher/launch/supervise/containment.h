// SPDX-License-Identifier: Apache-2.0
// A PID namespace for everything that a launcher starts.
#pragma once

namespace accelerate {

/// Makes the next child of this process the first of a PID namespace: when it
/// ends, the kernel kills everything inside. Users other than root also get a
/// user namespace, in which they keep their identity. Throws `SystemError` if
/// the system does not permit it.
void prepare_containment();

/// Call it in that child. The child then ends with its parent, and gets its own
/// /proc. Throws `SystemError`.
void enter_containment();

} // namespace accelerate
