// SPDX-License-Identifier: Apache-2.0
// A step of Adam or AdamW over many tensors, which also writes the weights of a
// reduced type that a model computes with.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "accelerate/export.h"

namespace accelerate::kernels {

struct AdamRule {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
  double eps = 0;
  bool maximize = false;
  /// AdamW's way of decay.
  bool is_decoupled = false;
};

/// Parallel lists of one device. `steps` count the coming one already.
/// Gradients are of the parameters' type or of the copies'. `max_exp_avg_sqs`
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

/// One pass over memory on a GPU where everything is of float32 and there is no
/// AMSGrad; elsewhere torch's fused step between two passes that cast.
/// `learning_rate`, one float of the device, counts in the place of `rule.lr`;
/// nothing changes where `found_inf` holds 1;
/// `gradient_factor`, one float too, multiplies the gradients as they are read.
void adam_step(
    const AdamTensors& tensors,
    const AdamRule& rule,
    const std::optional<at::Tensor>& learning_rate,
    const std::optional<at::Tensor>& found_inf,
    const std::optional<at::Tensor>& gradient_factor);

/// The operator's form, made of torch's operators.
ACCELERATE_API void plain_adam_step(
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
