// SPDX-License-Identifier: Apache-2.0
// A step of Adam or AdamW over many tensors, which also writes the
// reduced-precision weights that a model computes with.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/base/internal.h"

namespace accelerate::kernels {

struct AdamRule {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
  double eps = 0;
  bool maximize = false;
  /// Decoupled weight decay, as in AdamW.
  bool is_decoupled = false;
};

/// Parallel lists on one device. `steps` already include this step. Gradients
/// have the dtype of the parameters or of the copies. `max_exp_avg_sqs`
/// (AMSGrad) and `copies` may be empty.
struct AdamTensors {
  at::TensorList parameters;
  at::TensorList gradients;
  at::TensorList exp_avgs;
  at::TensorList exp_avg_sqs;
  at::TensorList max_exp_avg_sqs;
  at::TensorList steps;
  at::TensorList copies;
};

/// Runs in one pass over memory on a GPU if everything is float32 without
/// AMSGrad. Otherwise runs torch's fused step between two passes that cast.
/// `learning_rate`, one float on the device, replaces `rule.lr`. If `found_inf`
/// is 1, nothing changes. `gradient_factor`, also one float, multiplies the
/// gradients as they are read.
void adam_step(
    const AdamTensors& tensors,
    const AdamRule& rule,
    const std::optional<at::Tensor>& learning_rate,
    const std::optional<at::Tensor>& found_inf,
    const std::optional<at::Tensor>& gradient_factor);

/// The operator composed of torch operators.
ACCELERATE_INTERNAL void plain_adam_step(
    at::TensorList parameters,
    at::TensorList gradients,
    at::TensorList exp_avgs,
    at::TensorList exp_avg_sqs,
    at::TensorList max_exp_avg_sqs,
    at::TensorList steps,
    at::TensorList copies,
    const std::optional<at::Tensor>& learning_rate,
    double lr,
    double beta1,
    double beta2,
    double weight_decay,
    double eps,
    bool maximize,
    bool is_decoupled,
    const std::optional<at::Tensor>& found_inf,
    const std::optional<at::Tensor>& gradient_factor);

} // namespace accelerate::kernels
