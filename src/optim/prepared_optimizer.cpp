// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optimizer.h"
#include "optim/optimizer_step.h"

namespace accelerate {

PreparedOptimizer::PreparedOptimizer(
    torch::optim::Optimizer& optimizer,
    std::shared_ptr<OptimizerStep> step)
    : optimizer_(&optimizer), step_(std::move(step)) {}

PreparedOptimizer::operator torch::optim::Optimizer&() {
  step_->note_lent();
  return *optimizer_;
}

void PreparedOptimizer::step() {
  step_->step();
}
bool PreparedOptimizer::did_step() const {
  return step_->did_step();
}
bool PreparedOptimizer::step_was_skipped() const {
  return step_->was_skipped();
}
void PreparedOptimizer::zero_grad(bool set_to_none) {
  step_->zero_grad(set_to_none ? Zeroing::kDrop : Zeroing::kFill);
}

} // namespace accelerate
