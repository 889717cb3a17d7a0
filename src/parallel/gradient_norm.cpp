// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_norm.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

std::vector<at::Tensor> gradients_of(
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

} // namespace

at::Tensor clip_gradient_norm(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type) {
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw UsageError(str_cat(
        "[clip_grad_norm_] got max_norm ",
        max_norm,
        " and norm_type ",
        norm_type,
        ", expected a limit of at least 0 and a positive type (or infinity)"));
  }
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) {
    return at::zeros({});
  }
  const auto norms = at::_foreach_norm(gradients, norm_type);
  const auto total = at::linalg_vector_norm(at::stack(norms), norm_type);
  // The same small number as PyTorch's, against division by zero. The product
  // is made in any case: to look first would wait for the device.
  const auto factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  at::_foreach_mul_(gradients, factor);
  return total;
}

void clip_gradient_values(
    const std::vector<at::Tensor>& parameters,
    double limit) {
  if (!(limit >= 0)) {
    throw UsageError(str_cat(
        "[clip_grad_value_] got ", limit, ", expected a limit of at least 0"));
  }
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (!gradients.empty()) {
    at::_foreach_clamp_min_(gradients, -limit);
    at::_foreach_clamp_max_(gradients, limit);
  }
}

void scale_gradients(
    const std::vector<at::Tensor>& parameters,
    const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (!gradients.empty()) {
    at::_foreach_mul_(gradients, factor);
  }
}

} // namespace accelerate
