// SPDX-License-Identifier: Apache-2.0
// A prepared optimizer.
#pragma once

#include <torch/optim/optimizer.h>

#include "accelerate/export.h"

namespace accelerate {

/// What `prepare` makes of a `torch::optim` optimizer: the same steps, fit for
/// the gradients that the engine lays out. Borrows the optimizer, which must
/// outlive it. Converts to `torch::optim::Optimizer&`, so that torch's
/// schedulers take it.
class ACCELERATE_API PreparedOptimizer {
 public:
  explicit PreparedOptimizer(torch::optim::Optimizer& optimizer);

  /// Updates the parameters. Throws `UsageError` where no parameter has a
  /// gradient: `backward` was not called.
  void step();
  /// Forgets all gradients, so that the next backward starts from nothing.
  void zero_grad();

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  operator torch::optim::Optimizer&() { return *optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_;
};

} // namespace accelerate
