// SPDX-License-Identifier: Apache-2.0
// Reduces gradients of a sharded model to the ranks that train them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "accelerate/state/stateful.h"
#include "training/device/streams.h"
#include "training/parallel/arrivals.h"
#include "training/parallel/engine.h"
#include "training/parallel/lazy_storage.h"
#include "training/parallel/sharded_model.h"

namespace accelerate {

/// Takes gradients from the model's parameters as autograd computes them,
/// reduces each complete unit, and stores each slice's gradient.
class UnitGradients {
 public:
  /// All units of `model` must exist.
  explicit UnitGradients(ShardedModel& model);
  ~UnitGradients();

  /// Updates after parameters were frozen or unfrozen.
  void follow_frozen();

  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  void sync_next_backward() { syncs_next_ = true; }
  /// Whether the current backward pass reduces gradients.
  bool syncs() const { return sync_ || syncs_next_; }

  void before_backward();
  void after_backward();
  void abandon_backward();
  GradientArrival arrival() const { return arrival_; }
  /// Sends complete gradients when the other ranks have answered.
  void start_due_reduction();

  /// Like `GradientLayer`, but with the index of the parameter in the model.
  at::Tensor gradient(size_t index) const;
  void zero(size_t index, Zeroing how);
  StateValue saved(size_t index) const;
  void load(size_t index, const StateValue& value);

 private:
  struct Gradient;
  struct Reduction;
  struct ReadRefusal;

  Gradient& gradient_of(const ShardSlice& slice);
  const Gradient& gradient_of(const ShardSlice& slice) const;
  void add(size_t index, const at::Tensor& value);
  void take(size_t index);
  void announce_reduction(const ShardUnit& unit);
  void finish_reduction();
  bool travels_as_bf16(const ShardUnit& unit) const;
  ReduceOp operation_of(const ShardUnit& unit) const;
  bool keeps_whole() const;
  void zero_gaps(const ShardUnit& unit) const;
  void drop(const ShardUnit& unit);
  void forget(size_t index);
  void mark();

  ShardedModel& model_;
  CommStream stream_;
  std::vector<Gradient> gradients_;
  bool sync_ = true;
  bool syncs_next_ = false;
  bool is_in_backward_ = false;
  const ShardUnit* due_ = nullptr;
  std::unique_ptr<Reduction> reduction_;
  std::shared_ptr<ReadRefusal> refusal_;
  /// Stands in for gradients of which a rank has only a shard.
  LazyStorage marks_;
  std::vector<bool> is_marked_;
  std::unique_ptr<Arrivals> arrivals_;
  int64_t num_before_ = 0;
  GradientArrival arrival_ = GradientArrival::kUnknown;
};

} // namespace accelerate
