// SPDX-License-Identifier: Apache-2.0
// The norm of all numbers of many tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/export.h"

namespace accelerate::kernels {

/// Of tensors of one device, at least one, as if they were one vector: a number
/// of float32 (float64 where one of them is). On a GPU the norm of order 2 is
/// one pass over the tensors in their own types, which adds up in the same
/// order every time.
at::Tensor total_norm(at::TensorList tensors, double norm_type);

/// Made of torch's operators.
ACCELERATE_API at::Tensor plain_total_norm(
    at::TensorList tensors,
    double norm_type);

} // namespace accelerate::kernels
