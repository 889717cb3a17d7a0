// SPDX-License-Identifier: Apache-2.0
// The program of `accelerate test`, which runs on every rank.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

/// Checks that all ranks together compute the same as one process alone, and
/// prints each check. Throws `Error` if a check fails.
ACCELERATE_INTERNAL void run_selftest();

} // namespace accelerate
