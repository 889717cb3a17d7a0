// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "accelerate/optimizer.h"
#include "state/step_state.h"

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

struct PreparedOptimizer::State {
  torch::optim::Optimizer& optimizer;
  std::shared_ptr<const StepState> step_state;
  bool did_step = false;
};

PreparedOptimizer::PreparedOptimizer(
    torch::optim::Optimizer& optimizer,
    std::shared_ptr<const StepState> step_state)
    : state_(std::make_shared<State>(State{optimizer, std::move(step_state)})) {
}

torch::optim::Optimizer& PreparedOptimizer::optimizer() {
  return state_->optimizer;
}
bool PreparedOptimizer::did_step() const {
  return state_->did_step;
}

void PreparedOptimizer::step() {
  state_->did_step = false;
  if (!state_->step_state->sync_gradients()) {
    return;
  }
  if (!has_gradient(state_->optimizer)) {
    throw UsageError(
        "[step] no parameter of the optimizer has a gradient; call "
        "accelerator.backward(loss) first, with a loss of these parameters");
  }
  state_->optimizer.step();
  state_->did_step = true;
}

void PreparedOptimizer::zero_grad() {
  if (!state_->step_state->sync_gradients()) {
    return;
  }
  // Not `Optimizer::zero_grad`: it detaches gradients in place, which those
  // that live in a bucket of gradients do not allow.
  for (auto& group : state_->optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      parameter.mutable_grad() = at::Tensor();
    }
  }
}

} // namespace accelerate
