// SPDX-License-Identifier: Apache-2.0
// What `accelerate test` runs on every rank.
#pragma once

#include "accelerate/export.h"

namespace accelerate {

/// Checks that the ranks of the user's configuration compute together what one
/// would alone, and prints what was checked. Throws `Error` if they do not.
ACCELERATE_API void run_selftest();

} // namespace accelerate
