// SPDX-License-Identifier: Apache-2.0
// Ranks with different numbers of batches.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

class ParallelEngine;
class StepReductions;

struct ACCELERATE_API JoinOptions {
  /// Gradients are divided by the number of all ranks, also while some are done
  /// (they count as zero). Otherwise by the number of ranks that still train,
  /// so that the last batches count more.
  bool divide_by_initial_world_size = true;
};

/// What `Accelerator::join_uneven_inputs` gives. Put it around a loop in which
/// ranks may have different numbers of batches, none included:
///
///     {
///       const auto join = accelerator.join_uneven_inputs(net);
///       for (auto& batch : loader) { ... }
///     }
///
/// A rank that reaches the end of the block takes the part of a rank with zero
/// gradients in the collectives of the given models until all ranks are there;
/// then all get parameters, buffers and the fp16 scale of the highest rank that
/// trained last. State of optimizers is not carried over. Inside, ranks must
/// use the given models alike, and may run no other collective (`gather`, say),
/// as nobody would answer it. Throws `MismatchError` on all ranks that still
/// train where they use models differently, as when one accumulates and one
/// does not.
///
/// Where the block is left by an exception, nothing is matched any more. It may
/// outlive the models.
class ACCELERATE_API JoinGuard {
 public:
  /// Throws `UsageError` where there is no model, one is given twice, one has a
  /// static graph, whose first pass cannot be matched, or another guard lives.
  JoinGuard(
      std::shared_ptr<StepReductions> reductions,
      std::vector<ParallelEngine*> engines,
      JoinOptions options = {});
  ~JoinGuard() noexcept(false);
  JoinGuard(const JoinGuard&) = delete;
  JoinGuard& operator=(const JoinGuard&) = delete;

 private:
  void match_the_others();
  void leave();

  std::shared_ptr<StepReductions> reductions_;
  std::vector<std::shared_ptr<ParallelEngine>> engines_;
  std::shared_ptr<class JoinChannel> channel_;
  int num_exceptions_;
};

} // namespace accelerate
