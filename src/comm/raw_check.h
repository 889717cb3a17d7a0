// SPDX-License-Identifier: Apache-2.0
// What raw collectives compare in debug mode.
#pragma once

#include <string>
#include <vector>

#include "accelerate/process_group.h"

namespace accelerate {

/// In a group that checks its collectives: throws `MismatchError` on every rank
/// where ranks come with another operation, or other dtypes or shapes. Nothing
/// in other groups.
void check_raw(
    const ProcessGroup& group,
    const std::string& operation,
    const std::vector<at::Tensor>& tensors);

} // namespace accelerate
