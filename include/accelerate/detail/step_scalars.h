// SPDX-License-Identifier: Apache-2.0
// Scalars of a step that may be stored on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

struct ReducedCopies {
  /// Maps each trained tensor to the reduced-precision weights that the model
  /// computes with.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> weights;
  /// One float by which the optimizer multiplies gradients when it reads them.
  /// If undefined, gradients are not multiplied.
  at::Tensor gradient_factor = {};
};

/// Scalars that an update reads from tensors, so that the host never waits and
/// a captured step sees new values in every replay. They are undefined or empty
/// if the host passes the values instead.
struct StepScalars {
  /// One float, 0 or 1. If it is 1, the step changes nothing.
  at::Tensor found_inf = {};
  /// One float per group, used instead of the group's own learning rate.
  std::vector<at::Tensor> learning_rates = {};
  /// Copies that the optimizer must also write when it changes parameters, if
  /// it supports this (`takes_copies`). Gradients of these parameters may have
  /// the dtype of the copies.
  std::vector<const ReducedCopies*> copies = {};

  bool empty() const { return !found_inf.defined() && learning_rates.empty(); }
};

/// The base of optimizers that can read `StepScalars`.
class ACCELERATE_API TakesStepScalars {
 public:
  /// Whether the optimizer supports `give_scalars` with its current options.
  virtual bool takes_scalars() const = 0;
  /// Whether the optimizer writes `StepScalars::copies` with its current
  /// options.
  virtual bool takes_copies() const { return false; }
  /// Passes the scalars of the next step only.
  virtual void give_scalars(StepScalars scalars) = 0;

 protected:
  ~TakesStepScalars() = default;
};

} // namespace accelerate
