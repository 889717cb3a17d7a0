// SPDX-License-Identifier: Apache-2.0
// Adapts a C++ module to the named tensors of engines.
#pragma once

#include <torch/nn/module.h>

#include "training/state/parameter_set.h"

namespace accelerate {

ParameterSet parameters_of(const torch::nn::Module& module);

/// Like `module.to(device)`, but also for devices that torch does not list. The
/// tensors remain the same objects. Tensors without memory are unchanged.
/// Without parameters, moves only buffers.
void move_module(
    torch::nn::Module& module,
    c10::Device device,
    bool with_parameters = true);

/// Throws `UsageError` inside an `EmptyWeights`. Also throws it for a meta
/// tensor whose values are unknown, and names the tensor.
void check_values(const ParameterSet& model);

} // namespace accelerate
