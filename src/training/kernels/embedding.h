// SPDX-License-Identifier: Apache-2.0
// The gradient of an embedding table composed of torch operators, for devices
// without kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// Returns num_rows x channels: for each row, the sum of the gradients of its
/// uses. The sum is 0 for the row `padding` (negative if there is no such row).
ACCELERATE_INTERNAL at::Tensor plain_embedding_backward(
    const at::Tensor& gradient,
    const at::Tensor& ids,
    int64_t num_rows,
    int64_t padding);

} // namespace accelerate::kernels
