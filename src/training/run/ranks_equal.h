// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks hold the same weights.
#pragma once

#include "training/parallel/engine.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// Throws `MismatchError` on all ranks if any bit of a parameter differs, and
/// names the first such parameter. Of a parameter that tensor-parallel ranks
/// divide, compares the ranks that have the same part. Ignores buffers, because
/// they may differ between forward passes. Collective. Has no effect on a
/// single rank.
void check_ranks_equal(const ParallelEngine& engine, const ParameterSet& model);

} // namespace accelerate
