// SPDX-License-Identifier: Apache-2.0
// The parameters of one model, with one shard per rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "accelerate/distributed/sharding.h"
#include "accelerate/distributed/tensor_pieces.h"
#include "core/layout/tensor_layout.h"
#include "training/parallel/layers.h"
#include "training/parallel/memory_layout.h"
#include "training/parallel/shard_units.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// Parameters that are stored and sent together.
struct ShardUnit {
  size_t index = 0;
  /// In messages: "unit 'layers.0'".
  std::string name;
  /// Indices into the model's list.
  std::vector<size_t> members;
  std::vector<int64_t> offsets;
  /// Whether any of them has required a gradient since prepare.
  bool is_trained = false;
  /// Elements of all ranks, including padding; elements of a rank's shard.
  int64_t num_numbers = 0;
  int64_t num_own = 0;
  at::TensorOptions trained_options;
  at::TensorOptions used_options;
  /// Of `shard`.
  at::TensorOptions own_options;

  /// The shard that this rank trains and saves.
  at::Tensor shard;
  /// What the model reads, if it is always available; may share the memory of
  /// `shard`.
  at::Tensor whole;

  at::Tensor member_of(const at::Tensor& flat, size_t member, int64_t size)
      const {
    return flat.narrow(0, offsets[member], size);
  }
  bool has_whole() const { return whole.defined() && shard.is_alias_of(whole); }
};

/// This rank's part of a parameter.
struct ShardSlice {
  size_t unit = 0;
  size_t member = 0;
  at::Tensor own = {};
  TensorLayout layout = {};
  /// Of the whole parameter: one range at most.
  TensorPieces pieces = {};

  /// In the whole parameter.
  int64_t begin() const { return pieces.empty() ? 0 : pieces[0].begin; }
};

/// What is sharded, and where it is stored. Other classes handle the gathers
/// and gradients of units.
class ShardedModel {
 public:
  ShardedModel(
      const EngineArguments& arguments,
      const ShardingOptions& options,
      MemoryLayout& layout);
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  /// Adds the next unit with rank 0's values, or, if all ranks can read their
  /// shard separately, with these; `false` after the last one. Collective.
  /// Parameters to be gathered keep their own memory, which the class that
  /// gathers them releases.
  bool add_unit();

  /// Updates the slices after parameters were frozen or unfrozen.
  void follow_frozen();

  /// All ranks.
  const ProcessGroup& everyone() const { return everyone_; }
  /// The ranks of one replica of the model, and those that hold the same
  /// shards.
  const ProcessGroup& group() const { return group_; }
  const ProcessGroup& replicas() const { return replicas_; }
  const ShardingOptions& options() const { return options_; }
  const MemoryLayout& layout() const { return layout_; }
  /// Without the parameters that stay whole.
  const ParameterSet& model() const { return model_; }
  c10::Device device() const { return device_; }
  /// Throws `UsageError` naming a parameter that is no longer where `add_unit`,
  /// or the class that gathers it, has stored it: a step would not change it.
  void check_stored() const;
  bool is_offloaded() const { return memory_ == TensorMemory::kHost; }
  bool is_gathered() const { return options_.stage == ShardStage::kParameters; }

  std::vector<ShardUnit>& units() { return units_; }
  const std::vector<ShardUnit>& units() const { return units_; }
  /// With the size of a shard, on the device of shards.
  at::Tensor reserve_own(MemoryUse use, const ShardUnit& unit) const;
  /// For each parameter of the model.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  /// Whether it is sharded: a tensor of `model()`, or what is trained instead.
  bool holds(const at::Tensor& tensor) const;
  /// The index into the model's list, for the model's tensors and what is
  /// trained instead.
  size_t index_of(const at::Tensor& tensor) const;
  const ShardSlice& slice_of(const at::Tensor& tensor) const;
  const ShardUnit& unit_of(const ShardSlice& slice) const;
  /// The parameter that it is a part of.
  const at::Tensor& whole_of(const ShardSlice& slice) const;

 private:
  /// Replaces a sample that was not read.
  static constexpr uint64_t kNotRead = 0;
  std::vector<bool> agree_on_deferred_reads() const;
  /// Of the elements of its parameters, combined.
  uint64_t sample(const ShardUnitPlan& plan) const;
  /// Of a unit that has its part.
  ShardSlice make_slice(const ShardUnit& unit, size_t member) const;
  at::Tensor share_values(const ShardUnit& unit) const;
  void read_shard(ShardUnit& unit) const;
  void place_unit(ShardUnit& unit, const at::Tensor& flat);
  void add_slices(const ShardUnit& unit);

  Mesh mesh_;
  ProcessGroup everyone_;
  ProcessGroup group_;
  ProcessGroup replicas_;
  ShardingOptions options_;
  MemoryLayout& layout_;
  ParameterSet model_;
  std::optional<at::ScalarType> weights_;
  c10::Device device_;
  /// Of parts, on an accelerator's run.
  TensorMemory memory_;
  std::vector<ShardUnitPlan> plans_;
  /// For each unit: whether every rank reads its shard separately.
  std::vector<bool> are_shards_read_;
  std::vector<ShardUnit> units_;
  std::vector<ShardSlice> slices_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
};

} // namespace accelerate
