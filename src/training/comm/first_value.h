// SPDX-License-Identifier: Apache-2.0
// Lets ranks agree on a value without waiting for each other.
#pragma once

#include <string>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// The value of the rank that called first with this key: the same on all
/// ranks, whenever they call. In a group of one, `value` itself. Empty if the
/// group has no store. Throws `CommError` if the store is gone.
std::string first_value(
    const ProcessGroup& group,
    const std::string& key,
    const std::string& value);

} // namespace accelerate
