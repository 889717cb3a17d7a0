// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation: several micro-batches per update of the weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <forward_list>
#include <memory>
#include <optional>

#include "accelerate/export.h"

namespace accelerate {

class ParallelEngine;

/// During the lifetime of the guard, backward passes accumulate local gradients
/// without communication, if their forward passes also ran under the guard.
/// Guards of one model may be nested and may outlive the model.
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

/// The number of samples or tokens that a loss averages over. It is a number or
/// a tensor with one element. The host never waits for the tensor.
class ACCELERATE_API LossWeight {
 public:
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number> LossWeight(
      Number count) // NOLINT: `.weight = n` is the point.
      : LossWeight(static_cast<double>(count)) {}
  LossWeight(double count);     // NOLINT
  LossWeight(at::Tensor count); // NOLINT

  /// A tensor of dtype double without a graph.
  const at::Tensor& count() const { return count_; }

 private:
  at::Tensor count_;
};

struct ACCELERATE_API BackwardOptions {
  bool retain_graph = false;
  /// Makes the accumulated gradient equal to the gradient of the mean over all
  /// samples (or tokens) of all micro-batches on all ranks, as if they were one
  /// batch:
  ///
  ///     accelerator.backward(loss, {.weight = num_tokens});
  ///
  /// Without a weight, the loss is divided by the number of micro-batches and
  /// gradients are averaged over ranks, which results in a mean of means. Pass
  /// weights in all `backward` calls of an update and on all ranks, or in none
  /// of them. Call `backward` once per micro-batch. If there are several
  /// losses, add them first.
  std::optional<LossWeight> weight = {};
};

/// The scope of one micro-batch, returned by `Accelerator::accumulate`.
///
///     for (auto& batch : loader) {
///       const auto micro_batch = accelerator.accumulate(net);
///       accelerator.backward(loss_of(net(batch)));
///       opt.step(); // does nothing except in the last one of an update
///       scheduler.step();
///       opt.zero_grad();
///     }
///
/// Only one guard may exist for a model at a time.
class ACCELERATE_API AccumulateGuard {
 public:
  AccumulateGuard() = default;
  AccumulateGuard(AccumulateGuard&&) = default;
  AccumulateGuard& operator=(AccumulateGuard&&) = delete;

  /// Gradients of this model stay local during the lifetime of the guard.
  void hold_back(ParallelEngine& engine) { held_.emplace_front(engine); }
  /// Expires when the guard is destroyed.
  std::weak_ptr<void> life() {
    life_ = std::make_shared<char>();
    return life_;
  }

 private:
  std::forward_list<NoSyncGuard> held_;
  std::shared_ptr<void> life_;
};

} // namespace accelerate
