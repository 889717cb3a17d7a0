// SPDX-License-Identifier: Apache-2.0
// A prepared optimizer.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

class OptimizerStep;

/// What `prepare` returns for a `torch::optim` optimizer. It steps with the
/// gradients that the engine provides, and skips steps during gradient
/// accumulation and after an overflow. It refers to the original optimizer,
/// which must outlive it. It converts to `torch::optim::Optimizer&`, so that
/// torch's schedulers accept it. The state of torch's schedulers cannot be
/// saved, and `save_state` warns about this. Copies share all state.
class ACCELERATE_API PreparedOptimizer {
 public:
  PreparedOptimizer(
      torch::optim::Optimizer& optimizer,
      std::shared_ptr<OptimizerStep> step);

  /// Updates the parameters. Does nothing during gradient accumulation, or if
  /// the fp16 gradients of any rank are not finite. Throws `UsageError` if no
  /// parameter has a gradient because `backward` was not called.
  void step();
  /// Whether the latest `step` updated the parameters. Becomes false when a
  /// micro-batch begins that only accumulates gradients.
  bool did_step() const;
  /// Whether the latest `step` was skipped because of an overflow.
  bool step_was_skipped() const;
  /// Drops all gradients, or fills them with zeros in place. Does nothing
  /// during gradient accumulation.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  operator torch::optim::Optimizer&();
  const std::shared_ptr<OptimizerStep>& shared_step() const { return step_; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::shared_ptr<OptimizerStep> step_;
};

/// Saving and loading with torch's archives does not compile, because they
/// store state by position, and positions differ between engines and parameter
/// groups.
template <std::same_as<PreparedOptimizer> Prepared>
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const Prepared& /*optimizer*/) {
  static_assert(
      !std::same_as<Prepared, PreparedOptimizer>,
      "torch::save cannot take a prepared optimizer: use "
      "accelerator.save_state(folder), or optimizer_state of "
      "optimizer_state.h");
  return archive;
}

} // namespace accelerate
