// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer_step.h"

#include <algorithm>

#include "accelerate/error.h"

namespace accelerate {

OptimizerStep::OptimizerStep(
    std::unique_ptr<OptimizerAdapter> optimizer,
    std::shared_ptr<StepState> step_state,
    std::shared_ptr<GradScaler> scaler)
    : optimizer_(std::move(optimizer)),
      step_state_(std::move(step_state)),
      scaler_(std::move(scaler)) {}

void OptimizerStep::unscale() {
  if (scaler_) {
    scaler_->unscale(this, optimizer_->parameters());
  }
}

void OptimizerStep::step() {
  did_step_ = false;
  was_skipped_ = false;
  if (!step_state_->sync_gradients()) {
    return;
  }
  const auto parameters = optimizer_->parameters();
  if (std::none_of(parameters.begin(), parameters.end(), [](const auto& p) {
        return p.grad().defined();
      })) {
    throw UsageError(
        "[step] no parameter of the optimizer has a gradient; call "
        "accelerator.backward(loss) first, with a loss of these parameters");
  }
  step_state_->end_step();
  if (scaler_) {
    scaler_->unscale(this, parameters);
    was_skipped_ = scaler_->found_inf(this);
    scaler_->finish(this);
  }
  if (!was_skipped_) {
    optimizer_->step();
    did_step_ = true;
  }
}

void OptimizerStep::zero_grad() {
  if (!step_state_->sync_gradients()) {
    return;
  }
  // Dropped, not zeroed or detached in place: gradients may live in a bucket.
  for (auto& parameter : optimizer_->parameters()) {
    parameter.mutable_grad() = at::Tensor();
  }
  if (scaler_) {
    scaler_->finish(this);
  }
}

} // namespace accelerate
