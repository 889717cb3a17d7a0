// SPDX-License-Identifier: Apache-2.0
// Norms and clipping over the gradients of one or more models.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <vector>

namespace accelerate {

class ParallelEngine;
class ProcessGroup;

/// Gradients in the form in which this rank has them.
struct HeldGradients {
  /// The ranks that together have every element of these gradients once, as
  /// `Mesh::groups` returns them. Empty if this rank has all elements.
  std::vector<const ProcessGroup*> ranks = {};
  std::vector<at::Tensor> gradients = {};
  /// The engine that keeps all of these gradients for the step. Null if they
  /// are modified in place.
  ParallelEngine* keeper = nullptr;
  /// The device and dtype of the norm that `ranks` reduce. All ranks must use
  /// the same, including ranks without a slice.
  c10::TensorOptions norm_options = {};
};

/// Scales all gradients by the same factor so that their norm is at most
/// `max_norm`. Returns the previous norm as a tensor, which the device may
/// still be computing. Collective over the `ranks` of each entry, in order.
at::Tensor clip_gradient_norm(
    const std::vector<HeldGradients>& held,
    double max_norm,
    double norm_type);

/// Multiplies tensors on any devices, each in its own dtype.
void scale_in_place(
    const std::vector<at::Tensor>& tensors,
    const at::Tensor& factor);

/// Clamps each element of the gradients to `[-limit, limit]`.
void clip_gradient_values(const std::vector<HeldGradients>& held, double limit);

} // namespace accelerate
