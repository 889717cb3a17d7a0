// SPDX-License-Identifier: Apache-2.0
// A prepared optimizer.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "accelerate/export.h"

namespace accelerate {

class StepState;

/// What `prepare` makes of a `torch::optim` optimizer: the same steps, fit for
/// the gradients that the engine lays out. Borrows the optimizer, which must
/// outlive it. Converts to `torch::optim::Optimizer&`, so that torch's
/// schedulers take it. Copies share everything.
class ACCELERATE_API PreparedOptimizer {
 public:
  /// `step_state` says whether a step is under way that only adds up gradients.
  PreparedOptimizer(
      torch::optim::Optimizer& optimizer,
      std::shared_ptr<const StepState> step_state);

  /// Updates the parameters; nothing while gradients are accumulated. Throws
  /// `UsageError` where no parameter has a gradient: `backward` was not called.
  void step();
  /// Whether the latest `step` updated the parameters.
  bool did_step() const;
  /// Forgets all gradients, so that the next backward starts from nothing;
  /// nothing while gradients are accumulated.
  void zero_grad();

  torch::optim::Optimizer& optimizer();
  operator torch::optim::Optimizer&() { return optimizer(); }

 private:
  struct State;
  std::shared_ptr<State> state_;
};

} // namespace accelerate
