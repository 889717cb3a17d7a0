// SPDX-License-Identifier: Apache-2.0
// The optimizers that an Accelerator has prepared, for the Accelerator and for
// schedulers.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "accelerate/state/stateful.h"
#include "training/optim/optimizer_step.h"

namespace accelerate {

struct PreparedOptimizers {
  std::vector<std::pair<torch::optim::Optimizer*, std::weak_ptr<OptimizerStep>>>
      entries;

  /// Null if `optimizer` was not prepared, or the prepared optimizer was
  /// destroyed.
  std::shared_ptr<OptimizerStep> find(
      const torch::optim::Optimizer& optimizer) const {
    for (const auto& [known, step] : entries) {
      if (known == &optimizer) {
        return step.lock();
      }
    }
    return nullptr;
  }
};

/// A scheduler that was created for an optimizer itself is saved together with
/// the prepared optimizer, whichever is created first. Call these when one is
/// created.
void note_prepared(
    const torch::optim::Optimizer& optimizer,
    const std::shared_ptr<OptimizerStep>& step);
void note_scheduler(
    const torch::optim::Optimizer& optimizer,
    const std::shared_ptr<Stateful>& scheduler);

} // namespace accelerate
