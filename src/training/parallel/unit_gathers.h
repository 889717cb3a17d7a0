// SPDX-License-Identifier: Apache-2.0
// Gathers the units of a sharded model.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "training/device/streams.h"
#include "training/parallel/engine.h"
#include "training/parallel/prefetch_plan.h"
#include "training/parallel/sharded_model.h"

namespace accelerate {

/// The kind of pass that may read parameters.
enum class ShardPass { kNone, kTraining, kEvaluation, kBackward };

/// Gathers units when operators read them, or ahead of time if a pass is like
/// the previous one, and releases them. If the model always has whole weights,
/// updates these from all ranks' shards.
class UnitGathers {
 public:
  /// `before_use` is called at every use of a unit, before it is gathered.
  UnitGathers(
      ParallelEngine& engine,
      ShardedModel& model,
      std::function<void()> before_use);
  ~UnitGathers();

  /// Releases the memory of the parameters of the newest unit of the model.
  void add_unit();

  // --- weights that are gathered on use -------------------------------------
  ShardPass pass() const { return pass_; }
  void begin_pass(ShardPass pass);
  void end_pass();
  void abandon_pass();
  /// Releases all units. The shards may change afterwards.
  void release_all();

  // --- weights that stay whole ----------------------------------------------
  /// Sends every rank's shard to all. Collective.
  void gather_weights();
  /// Records that the whole weights are older than the shards.
  void set_stale() { is_stale_ = true; }
  bool is_stale() const { return is_stale_; }

 private:
  struct Gathered;

  size_t num_kept() const;
  PrefetchPlan& plan(ShardPass pass) {
    return plans_[static_cast<size_t>(pass)];
  }
  PrefetchPlan& plan() { return plan(pass_); }
  std::string gather_name(const ShardUnit& unit) const;
  void begin_use(Gathered& unit);
  void announce_ahead(const Gathered& unit);
  void gather_announced();
  void start_gather(Gathered& unit);
  void finish_gather(Gathered& unit);
  void release(Gathered& unit);
  void release_all_but(const std::vector<size_t>& kept);

  ParallelEngine& engine_;
  ShardedModel& model_;
  CommStream stream_;
  std::function<void()> before_use_;
  std::vector<std::shared_ptr<Gathered>> gathered_;
  ShardPass pass_ = ShardPass::kNone;
  bool casts_are_cached_ = true;
  std::array<PrefetchPlan, 4> plans_;
  /// Units whose next gather ranks compare, and whether the ranks have agreed.
  std::map<size_t, std::shared_ptr<const bool>> announced_;
  bool is_stale_ = false;
};

} // namespace accelerate
