// SPDX-License-Identifier: Apache-2.0
// The line of user code from which this thread was called.
#pragma once

#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// "train.py:12", the innermost line of user code on the stack; the name of a
/// function if the program has no line numbers; empty if nothing is known.
/// Takes up to two seconds, so use it only in error messages.
ACCELERATE_INTERNAL std::string calling_line();

} // namespace accelerate
