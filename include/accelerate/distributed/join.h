// SPDX-License-Identifier: Apache-2.0
// Training with different numbers of batches per rank.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

class ParallelEngine;
class StepReductions;

struct ACCELERATE_API JoinOptions {
  /// Divide gradients by the number of all ranks, even if some have finished
  /// (their gradients count as zero). If false, divide by the number of ranks
  /// that are still training, so that the last batches have a larger weight.
  bool divide_by_initial_world_size = true;
};

/// What `Accelerator::join_uneven_inputs` returns. Put it around a loop in
/// which ranks may have different numbers of batches, possibly none:
///
///     {
///       const auto join = accelerator.join_uneven_inputs(net);
///       for (auto& batch : loader) { ... }
///     }
///
/// A rank that reaches the end of the block joins the collectives of the given
/// models with zero gradients until all ranks have reached it. Then all ranks
/// receive the parameters, buffers and fp16 scale of the highest rank among
/// those that trained last. Optimizer state is not transferred. Inside the
/// block, ranks must use the given models in the same way and must not call any
/// other collective (such as `gather`), because finished ranks would not take
/// part in it. Throws `MismatchError` on all ranks that are still training if
/// they use models differently, for example if only one of them accumulates
/// gradients. Calling another prepared model with gradients enabled throws
/// `UsageError`, for the same reason.
///
/// At the end of the block, throws `UsageError` on all ranks if they are at
/// different micro-batches of an update, because some gradients would then
/// never be used by a step. If an exception leaves the block, the guard matches
/// no more collectives and does not throw. The guard may outlive the models.
class ACCELERATE_API JoinGuard {
 public:
  /// Throws `UsageError` if there are no models, if a model is passed twice, or
  /// if another guard exists. Unless `even` says that all ranks have the same
  /// number of batches, also throws if a model is sharded or has a static
  /// graph, because the collectives of such a model cannot be matched.
  JoinGuard(
      std::shared_ptr<StepReductions> reductions,
      std::vector<ParallelEngine*> engines,
      JoinOptions options = {},
      bool even = false);
  ~JoinGuard() noexcept(false);
  JoinGuard(const JoinGuard&) = delete;
  JoinGuard& operator=(const JoinGuard&) = delete;

  /// Makes the destructor neither match collectives nor throw, as after an
  /// exception. This is for callers whose errors are not C++ exceptions.
  void abandon() { is_abandoned_ = true; }

 private:
  void match_collectives();
  void check_accumulation() const;
  void leave();

  std::shared_ptr<StepReductions> reductions_;
  std::vector<std::shared_ptr<ParallelEngine>> engines_;
  std::shared_ptr<class JoinChannel> channel_;
  int num_exceptions_;
  bool is_abandoned_ = false;
};

} // namespace accelerate
