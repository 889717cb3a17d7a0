// SPDX-License-Identifier: Apache-2.0
// Epilogues of products composed of torch operators, for devices without
// kernels.
//
// Shapes: M rows, I inputs, O outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// gelu(inner) and inner = x weight^T + bias. The weight may have either memory
/// order.
ACCELERATE_INTERNAL std::tuple<at::Tensor, at::Tensor> plain_linear_gelu(
    const at::Tensor& x_MI,
    const at::Tensor& weight_OI,
    const at::Tensor& bias_O,
    bool is_tanh);

ACCELERATE_INTERNAL at::Tensor plain_gelu(
    const at::Tensor& inner,
    bool is_tanh);

/// The gradient of `inner`, computed from the gradient of gelu(inner), and its
/// sum over rows.
ACCELERATE_INTERNAL std::tuple<at::Tensor, at::Tensor> plain_gelu_gradient(
    const at::Tensor& of_outer_MO,
    const at::Tensor& inner_MO,
    bool is_tanh);

/// The sum over rows.
ACCELERATE_INTERNAL at::Tensor plain_column_sums(const at::Tensor& x_MO);

} // namespace accelerate::kernels
