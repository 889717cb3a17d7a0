// SPDX-License-Identifier: Apache-2.0
// The program of `accelerate test`, which runs on every rank.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

/// Checks that all ranks together compute what one process computes alone, and
/// prints each check. Throws `Error` if they do not.
ACCELERATE_INTERNAL void run_selftest();

} // namespace accelerate
