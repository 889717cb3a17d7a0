// SPDX-License-Identifier: Apache-2.0
// What a rank that fails tells the ranks that wait for it.
#pragma once

#include <string>

#include "accelerate/process_group.h"

namespace accelerate {

/// For a rank that fails before a checked collective: the ranks that wait there
/// throw `MismatchError` with `cause` instead of waiting. A collective.
ACCELERATE_API void tell_failure(
    const ProcessGroup& group,
    const std::string& cause);

} // namespace accelerate
