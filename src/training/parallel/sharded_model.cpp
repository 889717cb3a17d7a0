// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/sharded_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/stable_hash.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/parallel/lazy_storage.h"
#include "training/state/deferred_tensors.h"

namespace accelerate {
namespace {

/// Parameters and shards are aligned to this many elements. Kernels then
/// process a shard in the same way as the whole, so results are bit-identical.
constexpr int64_t kShardAlignment = 64;

bool is_cast(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

/// The device of a model's units. Parameters to be gathered may start on any
/// device.
c10::Device
device_of(const ParameterSet& model, ShardStage stage, c10::Device device) {
  for (const auto& parameter : model.parameters) {
    if (stage != ShardStage::kParameters && !is_deferred(parameter)) {
      return parameter.device();
    }
  }
  return device;
}

/// The name of a unit of parameters outside of blocks.
std::string name_loose_unit(
    const ParameterSet& model,
    const ShardUnitPlan& plan) {
  const auto& first = model.names[plan.members.front()];
  const size_t num_others = plan.members.size() - 1;
  return num_others == 0
             ? str_cat("unit '", first, "'")
             : str_cat("unit of '", first, "' and ", num_others, " others");
}

} // namespace

ShardedModel::ShardedModel(
    const EngineArguments& arguments,
    const ShardingOptions& options,
    MemoryLayout& layout)
    : mesh_(arguments.mesh),
      everyone_(arguments.group),
      group_(mesh_.group(MeshDimension::kShard)),
      replicas_(mesh_.group(MeshDimension::kReplicate)),
      options_(options),
      layout_(layout),
      model_(split_parameters(arguments.model, options).sharded),
      weights_(arguments.weights),
      device_(device_of(model_, options.stage, arguments.device)),
      memory_(
          options.cpu_offload && !device_.is_cpu() ? TensorMemory::kHost
                                                   : TensorMemory::kDevice),
      plans_(plan_shard_units(model_, options)),
      slices_(model_.parameters.size()) {
  std::vector<std::vector<size_t>> members;
  for (const auto& plan : plans_) {
    members.push_back(plan.members);
  }
  layout_.set_units(model_.parameters, std::move(members), kShardAlignment);
  are_shards_read_ = agree_on_deferred_reads();
}

// Determines which units every rank can read shard by shard. Ranks compare a
// few elements of each parameter, because different files would yield a model
// that nobody saved.
std::vector<bool> ShardedModel::agree_on_deferred_reads() const {
  std::vector<uint64_t> own;
  for (const auto& plan : plans_) {
    const bool are_read = std::all_of(
        plan.members.begin(), plan.members.end(), [&](size_t member) {
          return is_read_in_slices(model_.parameters[member]);
        });
    own.push_back(are_read ? sample(plan) : kNotRead);
  }
  const auto all = everyone_.all_gather_bytes(
      {reinterpret_cast<const char*>(own.data()),
       own.size() * sizeof(uint64_t)});
  std::vector<bool> agreed(plans_.size(), true);
  for (size_t i = 0; i < agreed.size(); ++i) {
    int other = -1;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      uint64_t theirs = 0;
      std::memcpy(
          &theirs, all[rank].data() + i * sizeof(theirs), sizeof(theirs));
      agreed[i] = agreed[i] && theirs != kNotRead;
      if (theirs != own[i]) {
        other = static_cast<int>(rank);
      }
    }
    if (agreed[i] && other >= 0) {
      throw MismatchError(str_cat(
          "[prepare] Rank ",
          everyone_.rank(),
          " and rank ",
          other,
          " read different weights for '",
          model_.names[plans_[i].members.front()],
          "' or an adjacent parameter. Make sure that all ranks see the same "
          "files"));
    }
  }
  return agreed;
}

uint64_t ShardedModel::sample(const ShardUnitPlan& plan) const {
  constexpr int64_t kNumbers = 16;
  std::string numbers;
  for (const size_t member : plan.members) {
    const auto& parameter = model_.parameters[member];
    const auto size = std::min(kNumbers, parameter.numel());
    if (size == 0) {
      continue;
    }
    const auto values =
        at::empty({size}, at::TensorOptions().dtype(parameter.scalar_type()));
    for (const auto begin : {int64_t(0), (parameter.numel() - size) / 2}) {
      read_deferred_slice(parameter, begin, values);
      numbers.append(
          static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    }
  }
  return std::max(stable_hash(numbers), kNotRead + 1);
}

bool ShardedModel::add_unit() {
  const size_t index = units_.size();
  if (index == plans_.size()) {
    return false;
  }
  const auto& plan = plans_[index];
  const auto& laid = layout_.units()[index];
  const auto& first = model_.parameters[plan.members.front()];
  ShardUnit unit;
  unit.index = index;
  unit.name = plan.prefix.empty() ? name_loose_unit(model_, plan)
                                  : str_cat("unit '", plan.prefix, "'");
  unit.members = plan.members;
  unit.offsets = laid.offsets;
  unit.is_trained = first.requires_grad();
  const int64_t granule = kShardAlignment * group_.world_size();
  unit.num_elements =
      std::max<int64_t>(1, (laid.num_elements + granule - 1) / granule) *
      granule;
  unit.shard_size = unit.num_elements / group_.world_size();
  unit.used_options = first.options().requires_grad(false).device(device_);
  unit.trained_options = unit.used_options;
  if (weights_ && is_cast(first)) {
    unit.used_options = unit.used_options.dtype(*weights_);
    unit.trained_options = unit.trained_options.dtype(at::kFloat);
  }
  unit.shard_options =
      is_offloaded() ? unit.trained_options.device(at::kCPU).pinned_memory(true)
                     : unit.trained_options;

  if (are_shards_read_[index]) {
    read_shard(unit);
  } else {
    place_unit(unit, share_values(unit));
  }
  add_slices(unit);
  units_.push_back(std::move(unit));
  return true;
}

/// The whole values of rank 0, in the dtype of training.
at::Tensor ShardedModel::share_values(const ShardUnit& unit) const {
  auto flat = layout_.allocate(
      MemoryUse::kParameters, unit.num_elements, unit.trained_options);
  for (size_t i = 0; i < unit.members.size(); ++i) {
    const auto& parameter = model_.parameters[unit.members[i]];
    const auto values = unit.member_of(flat, i, parameter.numel());
    if (everyone_.rank() == 0) {
      values.view(parameter.sizes())
          .copy_(
              is_deferred(parameter) ? deferred_values(parameter)
                                     : parameter.detach());
    }
  }
  announce(everyone_, str_cat("broadcast of ", unit.name));
  everyone_.broadcast(flat, 0);
  return flat;
}

void ShardedModel::read_shard(ShardUnit& unit) const {
  unit.shard = reserve_shard(MemoryUse::kParameters, unit).zero_();
  for (size_t i = 0; i < unit.members.size(); ++i) {
    const auto slice = make_slice(unit, i);
    if (!slice.pieces.empty()) {
      read_deferred_slice(
          model_.parameters[unit.members[i]], slice.begin(), slice.own);
    }
  }
}

ShardSlice ShardedModel::make_slice(const ShardUnit& unit, size_t member)
    const {
  const auto& parameter = model_.parameters[unit.members[member]];
  const auto offset = unit.offsets[member];
  ShardSlice slice{.unit = unit.index, .member = member};
  slice.layout = {
      .placements =
          {{MeshDimension::kShard, FlatShard{offset, unit.shard_size}}},
      .memory = memory_};
  slice.pieces = pieces_of(
      parameter.sizes().vec(),
      slice.layout,
      mesh_.shape(),
      mesh_.group().rank());
  // An empty range has no position in the shard.
  const auto begin = slice.pieces.empty() ? 0
                                          : offset + slice.begin() -
                                                unit.shard_size * group_.rank();
  slice.own = unit.shard.narrow(0, begin, num_elements(slice.pieces)).detach();
  return slice;
}

/// `flat` must contain the whole values in the dtype of training.
void ShardedModel::place_unit(ShardUnit& unit, const at::Tensor& flat) {
  const auto own =
      flat.narrow(0, unit.shard_size * group_.rank(), unit.shard_size);
  const bool shares = !is_gathered() && !is_offloaded() &&
                      unit.used_options.dtype() == flat.dtype();
  if (shares) {
    unit.whole = flat;
    unit.shard = own;
  } else {
    unit.shard = reserve_shard(MemoryUse::kParameters, unit).copy_(own);
  }
  if (is_gathered()) {
    return;
  }
  if (!shares) {
    unit.whole =
        layout_
            .reserve(
                MemoryUse::kParameters, unit.num_elements, unit.used_options)
            .copy_(flat);
  }
  for (size_t i = 0; i < unit.members.size(); ++i) {
    at::Tensor parameter = model_.parameters[unit.members[i]];
    if (parameter.dtype() != unit.used_options.dtype()) {
      parameter.mutable_grad().reset();
    }
    parameter.set_data(unit.member_of(unit.whole, i, parameter.numel())
                           .view(parameter.sizes()));
  }
}

at::Tensor ShardedModel::reserve_shard(MemoryUse use, const ShardUnit& unit)
    const {
  // Allocators of the user are for the model's device.
  return is_offloaded()
             ? at::empty({unit.shard_size}, unit.shard_options)
             : layout_.reserve(use, unit.shard_size, unit.shard_options);
}

void ShardedModel::add_slices(const ShardUnit& unit) {
  for (size_t i = 0; i < unit.members.size(); ++i) {
    const size_t index = unit.members[i];
    const auto& parameter = model_.parameters[index];
    auto slice = make_slice(unit, i);
    slice.own.set_requires_grad(parameter.requires_grad());
    index_of_[parameter.unsafeGetTensorImpl()] = index;
    index_of_[slice.own.unsafeGetTensorImpl()] = index;
    slices_[index] = std::move(slice);
  }
}

void ShardedModel::follow_frozen() {
  for (size_t i = 0; i < slices_.size(); ++i) {
    const bool is_trained = model_.parameters[i].requires_grad();
    slices_[i].own.set_requires_grad(is_trained);
    auto& unit = units_[slices_[i].unit];
    unit.is_trained = unit.is_trained || is_trained;
  }
}

void ShardedModel::check_stored() const {
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const auto& parameter = model_.parameters[i];
    const bool is_there =
        is_gathered() ? is_lazy(parameter)
                      : parameter.is_alias_of(unit_of(slices_[i]).whole);
    if (!is_there) {
      throw UsageError(str_cat(
          "[forward] Parameter '",
          model_.names[i],
          "' was moved to new memory after prepare() (by .data, half() or "
          "to()), so the optimizer would not update it. Change weights before "
          "prepare()"));
    }
  }
}

bool ShardedModel::holds(const at::Tensor& tensor) const {
  return index_of_.contains(tensor.unsafeGetTensorImpl());
}

size_t ShardedModel::index_of(const at::Tensor& tensor) const {
  return index_of_.at(tensor.unsafeGetTensorImpl());
}

const ShardSlice& ShardedModel::slice_of(const at::Tensor& tensor) const {
  return slices_[index_of(tensor)];
}

const ShardUnit& ShardedModel::unit_of(const ShardSlice& slice) const {
  return units_[slice.unit];
}

const at::Tensor& ShardedModel::whole_of(const ShardSlice& slice) const {
  return model_.parameters[unit_of(slice).members[slice.member]];
}

} // namespace accelerate
