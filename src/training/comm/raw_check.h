// SPDX-License-Identifier: Apache-2.0
// Checks of raw collectives in debug mode.
#pragma once

#include <string>
#include <vector>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// In a group that checks its collectives: throws `MismatchError` on every rank
/// if ranks call different operations, or pass different dtypes or shapes. No
/// effect in other groups.
void check_raw(
    const ProcessGroup& group,
    const std::string& operation,
    const std::vector<at::Tensor>& tensors);

} // namespace accelerate
