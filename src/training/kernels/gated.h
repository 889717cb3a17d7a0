// SPDX-License-Identifier: Apache-2.0
// Operators of Llama and related models composed of torch operators, for
// devices without kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// sum = residual + branch, normed = sum / root mean square * weight, and the
/// reciprocal of the root for each row. Without a branch, the returned sum is
/// empty, because it is the residual.
ACCELERATE_INTERNAL std::tuple<at::Tensor, at::Tensor, at::Tensor>
plain_rms_norm_forward(
    const at::Tensor& residual,
    const std::optional<at::Tensor>& branch,
    const at::Tensor& weight,
    double epsilon);

/// The gradients of the sum and of the weight.
ACCELERATE_INTERNAL std::tuple<at::Tensor, at::Tensor> plain_rms_norm_backward(
    const std::optional<at::Tensor>& of_sum,
    const at::Tensor& of_normed,
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& reciprocal_root);

/// Rotates the pair of channels (d, d + D / 2) of every head of B x T x H x D
/// by the angle with the given cosine and sine (B or 1, T, D / 2). Rotates
/// backwards if `is_inverse`.
ACCELERATE_INTERNAL at::Tensor plain_rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD,
    bool is_inverse);

ACCELERATE_INTERNAL at::Tensor plain_swiglu(
    const at::Tensor& gate,
    const at::Tensor& up);
/// The gradients of gate and up.
ACCELERATE_INTERNAL std::tuple<at::Tensor, at::Tensor> plain_swiglu_backward(
    const at::Tensor& of_result,
    const at::Tensor& gate,
    const at::Tensor& up);

} // namespace accelerate::kernels
