// SPDX-License-Identifier: Apache-2.0
// Reduced-precision weights, trained through fp32 master weights.
#pragma once

#include <functional>
#include <memory>

#include "parallel/strategies.h"

namespace accelerate {

/// Creates the engine that synchronises gradients, for parameters that already
/// have the reduced dtype.
using MakeInner =
    std::function<std::unique_ptr<ParallelEngine>(const EngineArguments&)>;

/// Converts the floating-point parameters to `arguments.weights` in place,
/// keeps a master weight for each trained one, and lets optimizers train these.
/// Checkpoints contain the master weights. Throws `UsageError` on sparse
/// gradients.
std::unique_ptr<ParallelEngine> make_master_engine(
    const EngineArguments& arguments,
    const MakeInner& make_inner);

} // namespace accelerate
