// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer_step.h"

namespace accelerate {

void OptimizerAdapter::zero_grad() {
  for (auto& parameter : parameters()) {
    parameter.mutable_grad() = at::Tensor();
  }
}

OptimizerStep::OptimizerStep(
    std::unique_ptr<OptimizerAdapter> optimizer,
    std::shared_ptr<StepState> step_state,
    std::shared_ptr<GradScaler> scaler)
    : optimizer_(std::move(optimizer)),
      step_state_(std::move(step_state)),
      scaler_(std::move(scaler)) {}

void OptimizerStep::unscale() {
  if (scaler_ && step_state_->sync_gradients()) {
    scaler_->unscale(this, optimizer_->parameters());
  }
}

void OptimizerStep::step() {
  did_step_ = false;
  was_skipped_ = false;
  if (!step_state_->sync_gradients()) {
    return;
  }
  step_state_->end_step();
  if (scaler_) {
    unscale();
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
  optimizer_->zero_grad();
  if (scaler_) {
    scaler_->finish(this);
  }
}

} // namespace accelerate
