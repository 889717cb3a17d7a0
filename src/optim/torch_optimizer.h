// SPDX-License-Identifier: Apache-2.0
// LibTorch's optimizers as the training step sees them.
#pragma once

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

#include "accelerate/error.h"
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
    check_gradients();
    place_state();
    optimizer_.step();
  }

 private:
  void check_gradients() {
    const auto all = parameters();
    if (std::none_of(all.begin(), all.end(), [](const auto& p) {
          return p.grad().defined();
        })) {
      throw UsageError(
          "[step] no parameter of the optimizer has a gradient; call "
          "accelerator.backward(loss) first, with a loss of these parameters");
    }
  }

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
