// SPDX-License-Identifier: Apache-2.0
// What `accelerate test` runs on every rank.
#pragma once

#include "accelerate/export.h"

namespace accelerate {

/// Checks that all ranks together compute what one process computes alone, and
/// prints what it checked. Throws `Error` if they do not.
ACCELERATE_API void run_selftest();

} // namespace accelerate
