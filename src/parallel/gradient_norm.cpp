// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_norm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "accelerate/error.h"
#include "base/str.h"
#include "parallel/engine.h"

namespace accelerate {
namespace {

/// Each operator takes gradients of one device.
std::map<std::string, std::vector<at::Tensor>> by_device(
    const std::vector<HeldGradients>& held) {
  std::map<std::string, std::vector<at::Tensor>> devices;
  for (const auto& part : held) {
    for (const auto& gradient : part.gradients) {
      devices[gradient.device().str()].push_back(gradient);
    }
  }
  return devices;
}

/// The norm of slices, of which every rank of the engine has its own.
at::Tensor norm_over_ranks(
    const HeldGradients& held,
    double norm_type,
    c10::Device device) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  auto own = at::zeros({}, options);
  if (!held.gradients.empty()) {
    own = at::linalg_vector_norm(
        at::stack(at::_foreach_norm(held.gradients, norm_type)), norm_type);
  }
  if (std::isinf(norm_type)) {
    held.engine->combine(own, ReduceOp::kMax);
    return own;
  }
  own = own.pow(norm_type);
  held.engine->combine(own, ReduceOp::kSum);
  return own.pow(1 / norm_type);
}

at::Tensor total_norm(
    const std::vector<HeldGradients>& held,
    double norm_type,
    c10::Device device) {
  std::vector<at::Tensor> norms;
  for (const auto& part : held) {
    if (part.engine != nullptr) {
      norms.push_back(norm_over_ranks(part, norm_type, device));
    } else if (!part.gradients.empty()) {
      for (const auto& norm : at::_foreach_norm(part.gradients, norm_type)) {
        norms.push_back(norm.to(device));
      }
    }
  }
  if (norms.empty()) {
    return at::zeros({}, at::TensorOptions(at::kFloat).device(device));
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

} // namespace

at::Tensor clip_gradient_norm(
    const std::vector<HeldGradients>& held,
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
  const auto devices = by_device(held);
  const c10::Device first = devices.empty()
                                ? c10::Device(c10::kCPU)
                                : devices.begin()->second[0].device();
  const auto total = total_norm(held, norm_type, first);
  // The same small number as PyTorch's, against division by zero. The product
  // is made in any case: to look first would wait for the device.
  // Python's `max_norm / total` is this product, whose last bit may differ from
  // the quotient's.
  const auto factor =
      at::clamp_max((total + 1e-6).reciprocal() * max_norm, 1.0);
  for (const auto& [device, gradients] : devices) {
    at::_foreach_mul_(gradients, factor.to(gradients[0].device()));
  }
  return total;
}

void clip_gradient_values(
    const std::vector<HeldGradients>& held,
    double limit) {
  if (!(limit >= 0)) {
    throw UsageError(str_cat(
        "[clip_grad_value_] got ", limit, ", expected a limit of at least 0"));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [device, gradients] : by_device(held)) {
    at::_foreach_clamp_min_(gradients, -limit);
    at::_foreach_clamp_max_(gradients, limit);
  }
}

} // namespace accelerate
