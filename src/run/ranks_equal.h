// SPDX-License-Identifier: Apache-2.0
// Do all ranks hold the same weights?
#pragma once

#include "accelerate/process_group.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Throws `MismatchError` on all ranks where a parameter differs by a bit,
/// naming the first; buffers may differ between forwards. A collective; nothing
/// on one rank.
void check_ranks_equal(const ProcessGroup& group, const ParameterSet& model);

} // namespace accelerate
