// SPDX-License-Identifier: Apache-2.0
// The parameters of one model, cut into one part per rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/process_group.h"
#include "accelerate/sharding.h"
#include "accelerate/tensor_pieces.h"
#include "parallel/memory_layout.h"
#include "parallel/shard_units.h"
#include "parallel/strategies.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Parameters that lie and travel together.
struct ShardUnit {
  size_t index = 0;
  /// In messages: "unit 'layers.0'".
  std::string name;
  /// Into the model's list.
  std::vector<size_t> members;
  std::vector<int64_t> offsets;
  /// Whether any of them has required a gradient since prepare.
  bool is_trained = false;
  /// Of all ranks, with what fills up; a rank's part.
  int64_t num_numbers = 0;
  int64_t num_own = 0;
  at::TensorOptions trained_options;
  at::TensorOptions used_options;
  /// Of `part`.
  at::TensorOptions own_options;

  /// What this rank trains and saves.
  at::Tensor part;
  /// What the model reads, where it always has it; may be the memory of `part`.
  at::Tensor whole;

  at::Tensor member_of(const at::Tensor& flat, size_t member, int64_t size)
      const {
    return flat.narrow(0, offsets[member], size);
  }
  bool has_whole() const { return whole.defined() && part.is_alias_of(whole); }
};

/// This rank's part of a parameter.
struct ShardSlice {
  size_t unit = 0;
  size_t member = 0;
  at::Tensor own;
  /// In the whole parameter.
  int64_t begin = 0;
};

/// What is cut, and where it is. Gathers and gradients of the units are other
/// classes' matter.
class ShardedModel {
 public:
  ShardedModel(
      const EngineArguments& arguments,
      const ShardingOptions& options,
      MemoryLayout& layout);
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  /// The next unit with rank 0's values, or, where all ranks can read their
  /// part of it by itself, with these; `false` after the last one. A
  /// collective. Where parameters are gathered, they keep their own memory:
  /// whoever gathers them takes it away.
  bool add_unit();

  /// Parameters were frozen or unfrozen: so are the slices of them.
  void follow_frozen();

  /// All ranks.
  const ProcessGroup& everyone() const { return everyone_; }
  /// Those that a copy of the model is cut over, and those that hold the same
  /// parts.
  const ProcessGroup& group() const { return group_; }
  const ProcessGroup& replicas() const { return replicas_; }
  const ShardingOptions& options() const { return options_; }
  const MemoryLayout& layout() const { return layout_; }
  /// Without what stays whole.
  const ParameterSet& model() const { return model_; }
  c10::Device device() const { return device_; }
  /// Throws `UsageError` naming a parameter that no longer lies where
  /// `add_unit`, or whoever gathers it, has put it: no step would reach it.
  void check_places() const;
  bool is_offloaded() const {
    return options_.cpu_offload && !device().is_cpu();
  }
  bool is_gathered() const { return options_.stage == ShardStage::kParameters; }

  std::vector<ShardUnit>& units() { return units_; }
  const std::vector<ShardUnit>& units() const { return units_; }
  /// As large as a part, where parts lie.
  at::Tensor reserve_own(MemoryUse use, const ShardUnit& unit) const;
  /// Of each parameter of the model.
  const std::vector<ShardSlice>& slices() const { return slices_; }
  /// Whether it is cut: a tensor of `model()`, or trained in its place.
  bool holds(const at::Tensor& tensor) const;
  /// Into the model's list; of the model's tensors and of what is trained in
  /// their place.
  size_t place_of(const at::Tensor& tensor) const;
  const ShardSlice& slice_of(const at::Tensor& tensor) const;
  const ShardUnit& unit_of(const ShardSlice& slice) const;
  /// The parameter that it is a part of.
  const at::Tensor& whole_of(const ShardSlice& slice) const;
  /// Which of its elements the slice has.
  TensorPieces pieces_of(const ShardSlice& slice) const;

 private:
  struct OwnRange {
    /// In the parameter.
    int64_t begin = 0;
    int64_t size = 0;
    /// In the rank's part.
    int64_t place = 0;
  };

  /// In place of a sample of numbers.
  static constexpr uint64_t kNotRead = 0;
  std::vector<bool> agree_on_parts() const;
  /// Of the numbers of its parameters, in one.
  uint64_t sample(const ShardUnitPlan& plan) const;
  OwnRange own_range(const ShardUnit& unit, size_t member, int64_t num_numbers)
      const;
  at::Tensor share_values(const ShardUnit& unit) const;
  void read_part(ShardUnit& unit) const;
  void place_unit(ShardUnit& unit, const at::Tensor& flat);
  void add_slices(const ShardUnit& unit);

  ProcessGroup everyone_;
  ProcessGroup group_;
  ProcessGroup replicas_;
  ShardingOptions options_;
  MemoryLayout& layout_;
  ParameterSet model_;
  std::optional<at::ScalarType> weights_;
  c10::Device device_;
  std::vector<ShardUnitPlan> plans_;
  /// Of each unit: whether every rank reads its part by itself.
  std::vector<bool> are_parts_read_;
  std::vector<ShardUnit> units_;
  std::vector<ShardSlice> slices_;
  std::unordered_map<const c10::TensorImpl*, size_t> place_of_;
};

} // namespace accelerate
