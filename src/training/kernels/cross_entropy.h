// SPDX-License-Identifier: Apache-2.0
// Cross-entropy composed of torch operators, for devices without kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// The loss of each row (0 if the row is ignored), and the logarithm of the
/// row's sum of exponentials.
ACCELERATE_INTERNAL std::tuple<at::Tensor, at::Tensor>
plain_cross_entropy_forward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored);

/// The gradient of the sum of losses times `factor`.
ACCELERATE_INTERNAL at::Tensor plain_cross_entropy_backward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& log_sums,
    const at::Tensor& factor,
    int64_t num_classes,
    int64_t ignored);

} // namespace accelerate::kernels
