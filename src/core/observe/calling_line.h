// SPDX-License-Identifier: Apache-2.0
// The line of user code from which this thread was called.
#pragma once

#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// The innermost line of user code on the stack, such as "train.py:12". If the
/// program has no line numbers, the name of a function. Empty if nothing is
/// known. Takes up to two seconds, so use it only in error messages.
ACCELERATE_INTERNAL std::string calling_line();

} // namespace accelerate
