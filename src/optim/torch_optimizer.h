// SPDX-License-Identifier: Apache-2.0
// LibTorch's optimizers as the training step sees them.
#pragma once

#include <torch/optim/optimizer.h>

#include <utility>

#include "optim/optimizer_step.h"
#include "optim/savable.h"

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
  void step() override {
    place_state();
    optimizer_.step();
  }

 private:
  // State that was made or loaded before the model moved to its device.
  void place_state() {
    if (std::exchange(is_placed_, true)) {
      return;
    }
    if (const auto state = savable(optimizer_)) {
      for (const auto& parameter : parameters()) {
        const auto kept = state->parameter_state(parameter);
        if (!parameter.is_cpu() && !kept.empty()) {
          state->load_parameter_state(parameter, kept);
        }
      }
    }
  }

  torch::optim::Optimizer& optimizer_;
  bool is_placed_ = false;
};

} // namespace accelerate
