// SPDX-License-Identifier: Apache-2.0
// The norm over many tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// The norm of tensors on one device, at least one, as if they were one vector;
/// in float32 (float64 if one of them is). On a GPU, the norm of order 2 takes
/// one pass over the tensors in their own dtypes and is deterministic.
at::Tensor total_norm(at::TensorList tensors, double norm_type);

/// Composed of torch operators.
ACCELERATE_INTERNAL at::Tensor plain_total_norm(
    at::TensorList tensors,
    double norm_type);

} // namespace accelerate::kernels
