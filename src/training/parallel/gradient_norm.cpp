// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/gradient_norm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "training/comm/agreement.h"
#include "training/kernels/total_norm.h"
#include "training/parallel/engine.h"

namespace accelerate {
namespace {

/// Gradients by device, because each operator accepts only one device.
using ByDevice = std::map<std::string, std::vector<at::Tensor>>;

void add_to(ByDevice& devices, const std::vector<at::Tensor>& gradients) {
  for (const auto& gradient : gradients) {
    if (gradient.layout() != at::kStrided) {
      throw UsageError(str_cat(
          "[clip_grad] A gradient of shape ",
          gradient.sizes(),
          " is sparse and cannot be clipped. Leave its parameter out, or "
          "create its Embedding with ",
          hint("sparse(false)", "sparse=False")));
    }
    devices[gradient.device().str()].push_back(gradient);
  }
}

/// The norm over slices, of which each rank has its own.
at::Tensor norm_over_ranks(const HeldGradients& held, double norm_type) {
  auto own = held.gradients.empty()
                 ? at::zeros({}, held.norm_options)
                 : kernels::total_norm(held.gradients, norm_type)
                       .to(held.norm_options);
  const bool is_largest = std::isinf(norm_type);
  if (!is_largest) {
    own = own.pow(norm_type);
  }
  for (const auto* ranks : held.ranks) {
    announce(*ranks, "reduction over gradient shards");
    ranks->all_reduce(own, is_largest ? ReduceOp::kMax : ReduceOp::kSum);
  }
  return is_largest ? own : own.pow(1 / norm_type);
}

at::Tensor total_norm(
    const std::vector<HeldGradients>& held,
    double norm_type,
    c10::Device device) {
  std::vector<at::Tensor> norms;
  ByDevice whole;
  for (const auto& group : held) {
    if (!group.ranks.empty()) {
      norms.push_back(norm_over_ranks(group, norm_type).to(device));
    } else {
      add_to(whole, group.gradients);
    }
  }
  for (const auto& [name, gradients] : whole) {
    norms.push_back(kernels::total_norm(gradients, norm_type).to(device));
  }
  if (norms.size() == 1) {
    return norms[0];
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
        "[clip_grad_norm_] max_norm is ",
        max_norm,
        " and norm_type is ",
        norm_type,
        ". max_norm must be at least 0, and norm_type must be positive or "
        "infinite"));
  }
  const at::NoGradGuard no_grad;
  ByDevice devices;
  for (const auto& group : held) {
    add_to(devices, group.gradients);
  }
  c10::Device first(c10::kCPU);
  if (!devices.empty()) {
    first = devices.begin()->second[0].device();
  } else if (!held.empty()) {
    first = held.back().norm_options.device();
  }
  const auto total = total_norm(held, norm_type, first);
  // PyTorch's epsilon prevents a division by zero. Always multiply, because a
  // check would wait for the device. Python's `max_norm / total` is also
  // computed as a product, whose last bit may differ from the quotient's.
  const auto factor =
      at::clamp_max((total + 1e-6).reciprocal() * max_norm, 1.0);
  for (const auto& group : held) {
    if (group.keeper != nullptr) {
      group.keeper->scale_kept_gradients(factor);
    } else {
      scale_in_place(group.gradients, factor);
    }
  }
  return total;
}

void scale_in_place(
    const std::vector<at::Tensor>& tensors,
    const at::Tensor& factor) {
  // A fused pass requires a single dtype, including the factor's.
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>>
      lists;
  for (const auto& tensor : tensors) {
    lists[{tensor.device().str(), tensor.scalar_type()}].push_back(tensor);
  }
  for (const auto& [key, list] : lists) {
    at::_foreach_mul_(list, factor.to(list[0].device(), key.second));
  }
}

void clip_gradient_values(
    const std::vector<HeldGradients>& held,
    double limit) {
  if (!(limit >= 0)) {
    throw UsageError(str_cat(
        "[clip_grad_value_] clip_value is ", limit, ". It must be at least 0"));
  }
  const at::NoGradGuard no_grad;
  ByDevice devices;
  for (const auto& group : held) {
    add_to(devices, group.gradients);
  }
  for (const auto& [device, gradients] : devices) {
    at::_foreach_clamp_min_(gradients, -limit);
    at::_foreach_clamp_max_(gradients, limit);
  }
}

} // namespace accelerate
