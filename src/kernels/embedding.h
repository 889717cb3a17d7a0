// SPDX-License-Identifier: Apache-2.0
// The gradient of a table of rows made of torch's operators: what runs where
// there is no kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/export.h"

namespace accelerate::kernels {

/// num_rows x channels: for each row the sum of the gradients of those that
/// asked for it, 0 for the row `padding` (none has a negative number).
ACCELERATE_API at::Tensor plain_embedding_backward(
    const at::Tensor& gradient,
    const at::Tensor& ids,
    int64_t num_rows,
    int64_t padding);

} // namespace accelerate::kernels
