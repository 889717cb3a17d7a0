// SPDX-License-Identifier: Apache-2.0
// The optimizers that an Accelerator has prepared, for it and for schedulers.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "optim/optimizer_step.h"

namespace accelerate {

struct PreparedOptimizers {
  std::vector<std::pair<torch::optim::Optimizer*, std::weak_ptr<OptimizerStep>>>
      entries;

  /// Null where it was not prepared, or where nobody holds what came of it.
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

} // namespace accelerate
