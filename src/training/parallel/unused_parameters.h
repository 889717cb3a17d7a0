// SPDX-License-Identifier: Apache-2.0
// Shortens the messages of c10d's Reducer about unused parameters.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "training/state/parameter_set.h"

namespace accelerate {

/// Runs `work`. If a reducer reports that its last reduction never ended
/// because some parameters got no gradient, throws `UsageError` with their
/// names. `names[i]` is the name of the reducer's parameter `i`.
void name_unused_parameters(
    const std::vector<std::string>& names,
    const std::function<void()>& work);

/// Throws `UsageError` if another engine averages the model's gradients.
void refuse_second_engine(const ParameterSet& model);

} // namespace accelerate
