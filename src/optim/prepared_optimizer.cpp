// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "accelerate/optimizer.h"

namespace accelerate {
namespace {

bool has_gradient(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) {
        return true;
      }
    }
  }
  return false;
}

} // namespace

PreparedOptimizer::PreparedOptimizer(torch::optim::Optimizer& optimizer)
    : optimizer_(&optimizer) {}

void PreparedOptimizer::step() {
  if (!has_gradient(*optimizer_)) {
    throw UsageError(
        "[step] no parameter of the optimizer has a gradient; call "
        "accelerator.backward(loss) first, with a loss of these parameters");
  }
  optimizer_->step();
}

void PreparedOptimizer::zero_grad() {
  // Not `Optimizer::zero_grad`: it detaches gradients in place, which those
  // that live in a bucket of gradients do not allow.
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      parameter.mutable_grad() = at::Tensor();
    }
  }
}

} // namespace accelerate
