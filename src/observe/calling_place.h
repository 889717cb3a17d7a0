// SPDX-License-Identifier: Apache-2.0
// Where user code called what this thread is in.
#pragma once

#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// "train.py:12", the innermost line of user code that led here; the name of a
/// function if the program has no line numbers, empty if nothing is known.
/// Takes up to two seconds: for messages of errors.
ACCELERATE_API std::string calling_place();

} // namespace accelerate
