// SPDX-License-Identifier: Apache-2.0
// A C++ module as the named tensors that engines work on.
#pragma once

#include <torch/nn/module.h>

#include "state/parameter_set.h"

namespace accelerate {

ParameterSet parameters_of(const torch::nn::Module& module);

/// As `module.to(device)`, which by itself refuses kinds of devices that torch
/// does not list: the tensors stay the same objects on all of them.
/// Tensors without memory stay as they are. Without parameters, the buffers
/// alone.
void move_module(
    torch::nn::Module& module,
    c10::Device device,
    bool with_parameters = true);

/// Throws `UsageError` naming a tensor of the meta device that nobody knows the
/// values of, and inside of an `EmptyWeights`.
void check_values(const ParameterSet& model);

} // namespace accelerate
