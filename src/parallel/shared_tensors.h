// SPDX-License-Identifier: Apache-2.0
// What engines of all ranks begin with alike.
#pragma once

#include <string>
#include <vector>

#include "accelerate/process_group.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Names, types and shapes, a line each, for ranks to compare.
std::string describe_model(const ParameterSet& model);

/// Throws `UsageError` where one of these, by their places, is trained by now.
/// `why` says what comes of it and what to do.
void check_frozen(
    const ParameterSet& model,
    const std::vector<size_t>& frozen,
    const char* why);

/// Gives all ranks `root`'s tensors. `what` names it in messages.
void broadcast_tensors(
    const ProcessGroup& group,
    const char* what,
    const std::vector<at::Tensor>& tensors,
    int root);

} // namespace accelerate
