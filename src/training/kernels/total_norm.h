// SPDX-License-Identifier: Apache-2.0
// The norm over many tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// The norm of at least one tensor on one device, as if all were one vector.
/// The result is float32, or float64 if one of the tensors is. On a GPU, the
/// norm of order 2 takes one pass over the tensors in their own dtypes and is
/// deterministic.
at::Tensor total_norm(at::TensorList tensors, double norm_type);

/// The operator composed of torch operators.
ACCELERATE_INTERNAL at::Tensor plain_total_norm(
    at::TensorList tensors,
    double norm_type);

} // namespace accelerate::kernels
