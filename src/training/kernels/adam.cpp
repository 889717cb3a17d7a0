// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/adam.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "training/kernels/operator.h"

namespace accelerate::kernels {
namespace {

/// The gradients in the dtype of the parameters, times the factor; empty if no
/// conversion is needed.
std::vector<at::Tensor> as_read(
    at::TensorList parameters,
    at::TensorList gradients,
    const std::optional<at::Tensor>& factor) {
  bool changes = factor.has_value();
  for (size_t i = 0; i < gradients.size() && !changes; ++i) {
    changes = gradients[i].scalar_type() != parameters[i].scalar_type();
  }
  std::vector<at::Tensor> read;
  for (size_t i = 0; changes && i < gradients.size(); ++i) {
    read.push_back(gradients[i].to(parameters[i].scalar_type()));
  }
  // Not in place, because a later step may read the same gradients.
  return factor ? at::_foreach_mul(read, *factor) : read;
}

} // namespace

void plain_adam_step(
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
    const std::optional<at::Tensor>& gradient_factor) {
  const auto read = as_read(parameters, gradients, gradient_factor);
  const bool amsgrad = !max_exp_avg_sqs.empty();
  const auto call = [&](const auto& rate) {
    const auto step = [&](auto function) {
      function(
          parameters,
          read.empty() ? gradients : at::TensorList(read),
          exp_avgs,
          exp_avg_sqs,
          max_exp_avg_sqs,
          steps,
          rate,
          beta1,
          beta2,
          weight_decay,
          eps,
          amsgrad,
          maximize,
          std::nullopt,
          found_inf);
    };
    if (is_decoupled) {
      step([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      step([](const auto&... arguments) { at::_fused_adam_(arguments...); });
    }
  };
  if (learning_rate) {
    call(*learning_rate);
  } else {
    call(lr);
  }
  if (!copies.empty()) {
    at::_foreach_copy_(copies, parameters);
  }
}

void adam_step(
    const AdamTensors& tensors,
    const AdamRule& rule,
    const std::optional<at::Tensor>& learning_rate,
    const std::optional<at::Tensor>& found_inf,
    const std::optional<at::Tensor>& gradient_factor) {
  static const auto handle =
      typed_operator<decltype(plain_adam_step)>("accelerate::_adam_step");
  handle.call(
      tensors.parameters,
      tensors.gradients,
      tensors.exp_avgs,
      tensors.exp_avg_sqs,
      tensors.max_exp_avg_sqs,
      tensors.steps,
      tensors.copies,
      learning_rate,
      rule.lr,
      rule.beta1,
      rule.beta2,
      rule.weight_decay,
      rule.eps,
      rule.maximize,
      rule.is_decoupled,
      found_inf,
      gradient_factor);
}

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def(
      "_adam_step(Tensor(a!)[] parameters, Tensor[] gradients, "
      "Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
      "Tensor(d!)[] max_exp_avg_sqs, Tensor[] steps, Tensor(e!)[] copies, "
      "Tensor? learning_rate, float lr, float beta1, float beta2, "
      "float weight_decay, float eps, bool maximize, bool is_decoupled, "
      "Tensor? found_inf, Tensor? gradient_factor) -> ()");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_adam_step", plain_adam_step);
}

} // namespace accelerate::kernels
