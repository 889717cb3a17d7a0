// SPDX-License-Identifier: Apache-2.0
// Several micro-batches for one update of the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <forward_list>
#include <memory>
#include <optional>

#include "accelerate/export.h"

namespace accelerate {

class ParallelEngine;

/// While it lives, backwards of forwards that it has seen too add up local
/// gradients and send nothing. Guards of one model may be nested; they may
/// outlive the model.
class ACCELERATE_API NoSyncGuard {
 public:
  explicit NoSyncGuard(ParallelEngine& engine);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  std::shared_ptr<ParallelEngine> engine_;
  bool was_syncing_;
};

/// How many samples or tokens a loss is the mean of: a number, or a tensor of
/// one number, which is then never waited for.
class ACCELERATE_API LossWeight {
 public:
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number> LossWeight(
      Number count) // NOLINT: `.weight = n` is the point.
      : LossWeight(static_cast<double>(count)) {}
  LossWeight(double count);     // NOLINT
  LossWeight(at::Tensor count); // NOLINT

  /// In double, without a graph.
  const at::Tensor& count() const { return count_; }

 private:
  at::Tensor count_;
};

struct ACCELERATE_API BackwardOptions {
  bool retain_graph = false;
  /// The gradient of the window becomes that of the mean over all samples (or
  /// tokens) of all its micro-batches on all ranks, as if they were one batch:
  ///
  ///     accelerator.backward(loss, {.weight = num_tokens});
  ///
  /// Without it, the loss is divided by the number of micro-batches and
  /// gradients are averaged over ranks: a mean of means. All backwards of a
  /// window and all ranks must give it, or none; there must be one backward per
  /// micro-batch (add several losses first).
  std::optional<LossWeight> weight = {};
};

/// What `Accelerator::accumulate` gives: the scope of one micro-batch.
///
///     for (auto& batch : loader) {
///       const auto window = accelerator.accumulate(net);
///       accelerator.backward(loss_of(net(batch)));
///       opt.step(); // nothing in all but the last of a window
///       scheduler.step();
///       opt.zero_grad();
///     }
///
/// One for the same models at a time.
class ACCELERATE_API AccumulateGuard {
 public:
  AccumulateGuard() = default;
  AccumulateGuard(AccumulateGuard&&) = default;
  AccumulateGuard& operator=(AccumulateGuard&&) = delete;

  /// Gradients of this model stay local while the guard lives.
  void hold_back(ParallelEngine& engine) { held_.emplace_front(engine); }
  /// Something that tells whether the guard still lives.
  std::weak_ptr<void> life() {
    life_ = std::make_shared<char>();
    return life_;
  }

 private:
  std::forward_list<NoSyncGuard> held_;
  std::shared_ptr<void> life_;
};

} // namespace accelerate
