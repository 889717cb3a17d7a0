// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/whole_gradients.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/parallel/shared_tensors.h"

namespace accelerate {
namespace {

std::vector<at::Tensor> trained_of(const ParameterSet& model) {
  std::vector<at::Tensor> trained;
  for (const auto& parameter : model.parameters) {
    if (parameter.requires_grad()) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

} // namespace

WholeGradients::WholeGradients(
    const ProcessGroup& group,
    ParameterSet parameters)
    : group_(group), parameters_(std::move(parameters)) {
  follow_frozen();
  const at::NoGradGuard no_grad;
  broadcast_tensors(
      group_, "broadcast of unsharded parameters", parameters_.parameters, 0);
}

void WholeGradients::follow_frozen() {
  arrivals_ =
      std::make_unique<Arrivals>(trained_of(parameters_), [](size_t) {});
}

void WholeGradients::before_backward() {
  num_before_ = arrivals_->num_arrived();
}

void WholeGradients::after_backward(bool syncs) {
  if (!syncs || parameters_.parameters.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::string members;
  std::vector<ProcessGroup::Work> works;
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters_.parameters.size(); ++i) {
    const auto& gradient = parameters_.parameters[i].grad();
    members += gradient.defined() ? '1' : '0';
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.layout() != at::kStrided) {
      throw UsageError(str_cat(
          "[backward] The gradient of '",
          parameters_.names[i],
          "' is sparse, which sharding does not support. Create its "
          "Embedding without sparse gradients"));
    }
    gradients.push_back(gradient);
  }
  announce(group_, "reduction of unsharded parameters with " + members);
  for (const auto& gradient : gradients) {
    works.push_back(group_.start_all_reduce(gradient, ReduceOp::kMean));
  }
  for (auto& work : works) {
    work.wait();
  }
}

bool WholeGradients::has_arrived() const {
  return arrivals_->num_arrived() != num_before_;
}

} // namespace accelerate
