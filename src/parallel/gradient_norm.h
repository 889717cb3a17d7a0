// SPDX-License-Identifier: Apache-2.0
// Norms and limits over all gradients of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate {

/// Shrinks the gradients of `parameters` so that their norm is at most
/// `max_norm`; the norm before, as a tensor that nobody has waited for.
at::Tensor clip_gradient_norm(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type);

/// Cuts each number of the gradients to `[-limit, limit]`.
void clip_gradient_values(
    const std::vector<at::Tensor>& parameters,
    double limit);

/// Multiplies all gradients by `factor`, a tensor of one number.
void scale_gradients(
    const std::vector<at::Tensor>& parameters,
    const at::Tensor& factor);

} // namespace accelerate
