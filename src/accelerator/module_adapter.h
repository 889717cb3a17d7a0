// SPDX-License-Identifier: Apache-2.0
// A C++ module as the named tensors that engines work on.
#pragma once

#include <torch/nn/module.h>

#include "state/parameter_set.h"

namespace accelerate {

ParameterSet parameters_of(const torch::nn::Module& module);

} // namespace accelerate
