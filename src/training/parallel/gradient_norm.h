// SPDX-License-Identifier: Apache-2.0
// Norms and clipping over the gradients of one or more models.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <vector>

#include "core/base/internal.h"

namespace accelerate {

class ParallelEngine;
class ProcessGroup;

/// Gradients as this rank holds them.
struct HeldGradients {
  /// The ranks that together hold every element of these once, as
  /// `Mesh::groups` returns them; empty if this rank has all elements.
  std::vector<const ProcessGroup*> ranks = {};
  std::vector<at::Tensor> gradients = {};
  /// The engine that keeps all of these for the step; null if they are modified
  /// in place.
  ParallelEngine* keeper = nullptr;
  /// With `ranks`: device and dtype of the norm that they reduce. All ranks
  /// must agree on it, including those that hold no slice.
  c10::TensorOptions norm_options = {};
};

/// Scales all gradients by the same factor so that their norm is at most
/// `max_norm`; returns the previous norm as a tensor that the device may still
/// be computing. Collective over the `ranks` of each entry, in order.
ACCELERATE_INTERNAL at::Tensor clip_gradient_norm(
    const std::vector<HeldGradients>& held,
    double max_norm,
    double norm_type);

/// Multiplies tensors of any devices and dtypes, each in its own dtype.
void scale_in_place(
    const std::vector<at::Tensor>& tensors,
    const at::Tensor& factor);

/// Clamps each element of the gradients to `[-limit, limit]`.
ACCELERATE_INTERNAL void clip_gradient_values(
    const std::vector<HeldGradients>& held,
    double limit);

} // namespace accelerate
