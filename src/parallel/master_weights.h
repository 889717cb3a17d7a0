// SPDX-License-Identifier: Apache-2.0
// Weights of reduced precision, trained through masters in float32.
#pragma once

#include <functional>
#include <memory>

#include "parallel/strategies.h"

namespace accelerate {

/// Makes the engine that lets gradients meet, for parameters that are of the
/// reduced type already.
using MakeInner =
    std::function<std::unique_ptr<ParallelEngine>(const EngineArguments&)>;

/// Turns the floating-point parameters into `arguments.weights` in place, keeps
/// a master of each that is trained, and has optimizers train the masters. What
/// is saved are the masters. Throws `UsageError` on sparse gradients.
std::unique_ptr<ParallelEngine> make_master_engine(
    const EngineArguments& arguments,
    const MakeInner& make_inner);

} // namespace accelerate
