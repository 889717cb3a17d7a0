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
/// does not. A forward with gradients of another prepared model, which nobody
/// would answer either, throws `UsageError`.
///
/// At the end, throws `UsageError` on all ranks where they stand at different
/// micro-batches of a window of `accumulate`: the gradients of those in the
/// middle of one went into no step. Where the block is left by an exception,
/// nothing is matched or thrown any more. It may outlive the models.
class ACCELERATE_API JoinGuard {
 public:
  /// Throws `UsageError` where there is no model, one is given twice, or
  /// another guard lives; unless all ranks have `even` numbers of batches, also
  /// where one has a static graph, whose first pass cannot be matched, or is
  /// sharded.
  JoinGuard(
      std::shared_ptr<StepReductions> reductions,
      std::vector<ParallelEngine*> engines,
      JoinOptions options = {},
      bool even = false);
  ~JoinGuard() noexcept(false);
  JoinGuard(const JoinGuard&) = delete;
  JoinGuard& operator=(const JoinGuard&) = delete;

 private:
  void match_the_others();
  void check_windows() const;
  void leave();

  std::shared_ptr<StepReductions> reductions_;
  std::vector<std::shared_ptr<ParallelEngine>> engines_;
  std::shared_ptr<class JoinChannel> channel_;
  int num_exceptions_;
};

} // namespace accelerate
