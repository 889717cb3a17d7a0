// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks hold the same weights.
#pragma once

#include "accelerate/distributed/process_group.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// Throws `MismatchError` on all ranks if any bit of a parameter differs, and
/// names the first such parameter. Ignores buffers, because they may differ
/// between forward passes. Collective. Has no effect on a single rank.
void check_ranks_equal(const ProcessGroup& group, const ParameterSet& model);

} // namespace accelerate
