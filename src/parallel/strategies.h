// SPDX-License-Identifier: Apache-2.0
// The strategies for training a model with several ranks.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "accelerate/ddp.h"
#include "accelerate/memory_options.h"
#include "accelerate/mesh.h"
#include "accelerate/own_engine.h"
#include "accelerate/sharding.h"
#include "parallel/engine.h"

namespace accelerate {

/// What an engine is created from.
struct EngineArguments {
  ProcessGroup group;
  ParameterSet model;
  MemoryOptions memory = {};
  /// If set, parameters are converted to this dtype and optimizers train fp32
  /// master weights.
  std::optional<at::ScalarType> weights = {};
  /// The arrangement of its ranks, for strategies that distinguish them.
  Mesh mesh = {};
  /// The device of tensors that have no memory yet
  /// (`state/deferred_tensors.h`), and of gathered parameters' shards.
  c10::Device device = c10::kCPU;
};

/// On this rank only.
struct SingleDevice {
  /// What would be sharded with several ranks: options that are wrong there are
  /// rejected here, too.
  ShardingOptions shard = {};
};

/// One alternative per strategy.
using Strategy =
    std::variant<SingleDevice, DdpOptions, ShardingOptions, OwnEngine>;

/// Creates the engine of one model. Collective if the strategy communicates.
/// Throws `MismatchError` naming the odd rank if models differ.
ACCELERATE_API std::shared_ptr<ParallelEngine> make_engine(
    const EngineArguments& arguments,
    const Strategy& strategy);

/// Broadcasts rank 0's parameters and buffers, then averages gradients.
std::unique_ptr<ParallelEngine> make_ddp_engine(
    const EngineArguments& arguments,
    const DdpOptions& options);

/// Shards parameters, gradients or optimizer state, starting with rank 0's
/// values.
std::unique_ptr<ParallelEngine> make_shard_engine(
    const EngineArguments& arguments,
    const ShardingOptions& options);

} // namespace accelerate
