// SPDX-License-Identifier: Apache-2.0
// The step of a prepared optimizer, whatever language it comes from.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/grad_scaler.h"
#include "state/step_state.h"

namespace accelerate {

/// An optimizer as the training step sees it.
class ACCELERATE_API OptimizerAdapter {
 public:
  virtual ~OptimizerAdapter() = default;
  virtual std::vector<at::Tensor> parameters() = 0;
  virtual void step() = 0;
  /// Drops the gradients, which may live in a bucket: neither zeroed nor
  /// detached in place.
  virtual void zero_grad();
};

/// Decides whether a call of `step` updates weights.
class ACCELERATE_API OptimizerStep {
 public:
  /// `scaler` may be empty.
  OptimizerStep(
      std::unique_ptr<OptimizerAdapter> optimizer,
      std::shared_ptr<StepState> step_state,
      std::shared_ptr<GradScaler> scaler);

  /// Nothing while gradients are accumulated; else unscales, agrees with the
  /// other ranks on overflow, and steps where there is none.
  void step();
  void zero_grad();
  /// Nothing while gradients are accumulated.
  void unscale();

  /// Not any more when a micro-batch has begun that only adds up gradients.
  bool did_step() const { return did_step_ && step_state_->sync_gradients(); }
  /// Whether the latest `step` was left out because of an overflow.
  bool was_skipped() const { return was_skipped_; }
  OptimizerAdapter& optimizer() { return *optimizer_; }

 private:
  std::unique_ptr<OptimizerAdapter> optimizer_;
  std::shared_ptr<StepState> step_state_;
  std::shared_ptr<GradScaler> scaler_;
  bool did_step_ = false;
  bool was_skipped_ = false;
};

} // namespace accelerate
