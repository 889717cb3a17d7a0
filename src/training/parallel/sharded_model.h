// SPDX-License-Identifier: Apache-2.0
// The parameters of one model, with one shard per rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
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

/// Parameters that are stored and sent together: a shard unit.
struct ShardUnit {
  size_t index = 0;
  /// The name in messages, such as "unit 'layers.0'".
  std::string name;
  /// The indices of its parameters in `ShardedModel::model()`, and their
  /// offsets in the flat tensor.
  std::vector<size_t> members;
  std::vector<int64_t> offsets;
  /// Whether any of its parameters has required a gradient since prepare().
  bool is_trained = false;
  /// The number of elements of the unit, including padding, and of one shard.
  int64_t num_elements = 0;
  int64_t shard_size = 0;
  at::TensorOptions trained_options;
  at::TensorOptions used_options;
  /// Options of `shard`.
  at::TensorOptions shard_options;

  /// The shard that this rank trains and saves.
  at::Tensor shard;
  /// The whole weights, if they stay in memory (stages 1 and 2). May share
  /// memory with `shard`.
  at::Tensor whole;

  at::Tensor member_of(const at::Tensor& flat, size_t member, int64_t size)
      const {
    return flat.narrow(0, offsets[member], size);
  }
  bool shard_is_view_of_whole() const {
    return whole.defined() && shard.is_alias_of(whole);
  }
};

/// This rank's shard of one parameter.
struct ShardSlice {
  size_t unit = 0;
  size_t member = 0;
  at::Tensor own = {};
  TensorLayout layout = {};
  /// Which elements of the whole parameter this rank has: at most one range.
  TensorPieces pieces = {};

  /// The first of these elements.
  int64_t begin() const { return pieces.empty() ? 0 : pieces[0].begin; }
};

/// Which parameters are sharded, and where they are stored. `UnitGathers`
/// gathers the units, and `UnitGradients` handles their gradients.
class ShardedModel {
 public:
  ShardedModel(
      const EngineArguments& arguments,
      const ShardingOptions& options,
      MemoryLayout& layout);
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  /// Adds the next unit. Returns false if there is none left. If every rank can
  /// read its own shard from the files, it does so. Otherwise rank 0 broadcasts
  /// its values. Collective. With stage 3, parameters keep their memory until
  /// `UnitGathers` releases it.
  bool add_unit();

  /// Updates the slices after parameters were frozen or unfrozen.
  void follow_frozen();

  /// The group of all ranks.
  const ProcessGroup& everyone() const { return everyone_; }
  /// The ranks of one replica of the model, and those that hold the same
  /// shards.
  const ProcessGroup& group() const { return group_; }
  const ProcessGroup& replicas() const { return replicas_; }
  const ShardingOptions& options() const { return options_; }
  const MemoryLayout& layout() const { return layout_; }
  /// The sharded parameters only.
  const ParameterSet& model() const { return model_; }
  c10::Device device() const { return device_; }
  /// Throws `UsageError` if user code has moved a parameter to other memory,
  /// because steps would not update it. The message names the parameter.
  void check_stored() const;
  bool is_offloaded() const { return memory_ == TensorMemory::kHost; }
  bool is_gathered() const { return options_.stage == ShardStage::kParameters; }

  std::vector<ShardUnit>& units() { return units_; }
  const std::vector<ShardUnit>& units() const { return units_; }
  /// Allocates an uninitialised tensor for a shard of `unit`.
  at::Tensor reserve_shard(MemoryUse use, const ShardUnit& unit) const;
  /// One slice for each parameter of `model()`.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  /// Whether `tensor` is a parameter of `model()` or the slice that is trained
  /// in its place.
  bool holds(const at::Tensor& tensor) const;
  /// The index in `model()` of such a parameter or slice.
  size_t index_of(const at::Tensor& tensor) const;
  const ShardSlice& slice_of(const at::Tensor& tensor) const;
  const ShardUnit& unit_of(const ShardSlice& slice) const;
  /// The parameter that `slice` is a shard of.
  const at::Tensor& whole_of(const ShardSlice& slice) const;

 private:
  /// The checksum of a unit that is not read from files.
  static constexpr uint64_t kNotRead = 0;
  std::vector<bool> agree_on_deferred_reads() const;
  /// A hash of a few elements of each parameter of the unit.
  uint64_t sample(const ShardUnitPlan& plan) const;
  /// `unit.shard` must exist.
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
  /// Where shards are stored.
  TensorMemory memory_;
  std::vector<ShardUnitPlan> plans_;
  /// For each unit: whether every rank reads its shard separately.
  std::vector<bool> are_shards_read_;
  std::vector<ShardUnit> units_;
  std::vector<ShardSlice> slices_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
};

} // namespace accelerate
