// SPDX-License-Identifier: Apache-2.0
// LibTorch's optimizers as the training step sees them.
#pragma once

#include <torch/optim/optimizer.h>

#include "optim/optimizer_step.h"

namespace accelerate {

/// Borrows the optimizer.
class TorchOptimizer final : public OptimizerAdapter {
 public:
  explicit TorchOptimizer(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer) {}

  std::vector<at::Tensor> parameters() override {
    std::vector<at::Tensor> all;
    for (const auto& group : optimizer_.param_groups()) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    return all;
  }
  void step() override { optimizer_.step(); }

 private:
  torch::optim::Optimizer& optimizer_;
};

} // namespace accelerate
