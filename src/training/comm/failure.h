// SPDX-License-Identifier: Apache-2.0
// Lets a failing rank notify the ranks that wait for it.
#pragma once

#include <string>

#include "accelerate/distributed/process_group.h"
#include "core/base/internal.h"

namespace accelerate {

/// Call this on a rank that fails before a checked collective. The ranks that
/// wait there throw `MismatchError` with `cause` instead of waiting.
/// Collective.
ACCELERATE_INTERNAL void report_failure(
    const ProcessGroup& group,
    const std::string& cause);

} // namespace accelerate
