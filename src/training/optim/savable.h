// SPDX-License-Identifier: Apache-2.0
// Uniform access to the state of every optimizer that can be saved.
#pragma once

#include <memory>

#include "accelerate/optim/optimizer_state.h"
#include "core/base/internal.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// The optimizer itself if it is a `SavableOptimizer`, an adapter for
/// optimizers of torch::optim, and null for others. Must not outlive the
/// optimizer.
ACCELERATE_INTERNAL std::shared_ptr<SavableOptimizer> savable(
    torch::optim::Optimizer& optimizer);

/// The names that an engine uses.
ACCELERATE_INTERNAL NamedParameters named_parameters(const ParameterSet& set);

} // namespace accelerate
