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

/// What `prepare` makes of a `torch::optim` optimizer: the same steps, fit for
/// the gradients that the engine lays out, left out while gradients are
/// accumulated and after an overflow. Borrows the optimizer, which must outlive
/// it. Converts to `torch::optim::Optimizer&`, so that torch's schedulers take
/// it; their state cannot be saved, `save_state` warns of them. Copies share
/// everything.
class ACCELERATE_API PreparedOptimizer {
 public:
  PreparedOptimizer(
      torch::optim::Optimizer& optimizer,
      std::shared_ptr<OptimizerStep> step);

  /// Updates the parameters; nothing while gradients are accumulated, or where
  /// fp16 gradients of any rank are not finite. Throws `UsageError` where no
  /// parameter has a gradient: `backward` was not called.
  void step();
  /// Whether the latest `step` updated the parameters; no longer when a
  /// micro-batch has begun that only adds up gradients.
  bool did_step() const;
  /// Whether the latest `step` was left out because of an overflow.
  bool step_was_skipped() const;
  /// Forgets all gradients, so that the next backward starts from nothing, or
  /// fills them with zeros, so that their memory stays; nothing while gradients
  /// are accumulated.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  operator torch::optim::Optimizer&();
  const std::shared_ptr<OptimizerStep>& shared_step() const { return step_; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::shared_ptr<OptimizerStep> step_;
};

/// Refused when compiling: torch's archives hold state by position, which other
/// engines and groups do not keep.
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
