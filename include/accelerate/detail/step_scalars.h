// SPDX-License-Identifier: Apache-2.0
// Numbers of a step that may live on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

struct ReducedCopies {
  /// From what is trained to the weights of a reduced type that a model
  /// computes with in its place.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> weights;
  /// One float, which the optimizer multiplies their gradients with as it reads
  /// them; undefined where they are as they shall be.
  at::Tensor gradient_factor = {};
};

/// What an update is told by tensors, so that the host waits for nothing and a
/// captured step reads new values at every replay. Undefined or empty where the
/// host decides.
struct StepScalars {
  /// One float, 0 or 1; with 1 the step changes nothing.
  at::Tensor found_inf = {};
  /// One float for each group, in the place of the group's own rate.
  std::vector<at::Tensor> learning_rates = {};
  /// Given to optimizers that take them: each writes the weights of what it has
  /// changed. Gradients of such tensors may be of the weights' type.
  std::vector<const ReducedCopies*> copies = {};

  bool empty() const { return !found_inf.defined() && learning_rates.empty(); }
};

/// Optimizers that can read them derive from it.
class ACCELERATE_API TakesStepScalars {
 public:
  /// With the options that it has now.
  virtual bool takes_scalars() const = 0;
  /// Whether it writes `StepScalars::copies`, with the options that it has now.
  virtual bool takes_copies() const { return false; }
  /// For the next step alone.
  virtual void give_scalars(StepScalars scalars) = 0;

 protected:
  ~TakesStepScalars() = default;
};

} // namespace accelerate
