// SPDX-License-Identifier: Apache-2.0
// Residual, dropout and layer norm composed of torch operators, for devices
// without kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "core/base/internal.h"

namespace accelerate::kernels {

/// sum, normed, mean, reciprocal deviation and mask, for rows x channels.
/// Unused ones are empty: the sum without `branch` (it is the residual), the
/// norm without `weight`, and the mask without dropout.
using AddNormResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
ACCELERATE_INTERNAL AddNormResult plain_add_norm_forward(
    const at::Tensor& residual,
    const std::optional<at::Tensor>& branch,
    const std::optional<at::Tensor>& branch_bias,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double dropout,
    double epsilon);

/// The normalised values may have two gradients, which are added. Returns the
/// gradients of the residual, of the branch, and of weight, bias and branch
/// bias (3 x channels, 0 for absent ones). The gradient of the branch is empty
/// if it equals the residual's, or there is no branch.
using AddNormGradient = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
ACCELERATE_INTERNAL AddNormGradient plain_add_norm_backward(
    const std::optional<at::Tensor>& of_sum,
    const std::optional<at::Tensor>& of_normed,
    const std::optional<at::Tensor>& of_normed_too,
    const at::Tensor& sum,
    const std::optional<at::Tensor>& weight,
    const at::Tensor& mean,
    const at::Tensor& reciprocal_deviation,
    const at::Tensor& mask,
    bool has_branch,
    double dropout);

} // namespace accelerate::kernels
