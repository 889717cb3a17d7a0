// SPDX-License-Identifier: Apache-2.0
// The ways in which a model trains together with the other ranks.
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

/// What an engine is made from.
struct EngineArguments {
  ProcessGroup group;
  ParameterSet model;
  MemoryOptions memory = {};
  /// Where given, parameters become of this type and optimizers train masters
  /// of them in float32.
  std::optional<at::ScalarType> weights = {};
  /// How its ranks lie; for strategies that tell them apart.
  Mesh mesh = {};
  /// Where tensors go that have no memory yet (`state/deferred_tensors.h`), and
  /// parts of parameters that are gathered.
  c10::Device device = c10::kCPU;
};

/// On this rank alone.
struct SingleDevice {
  /// What there would be cut with other ranks: a program that is wrong there is
  /// wrong here.
  ShardingOptions shard = {};
};

/// One alternative per strategy.
using Strategy =
    std::variant<SingleDevice, DdpOptions, ShardingOptions, OwnEngine>;

/// The engine of one model. A collective where the strategy speaks to the other
/// ranks. Throws `MismatchError` naming the odd rank where models differ.
ACCELERATE_API std::shared_ptr<ParallelEngine> make_engine(
    const EngineArguments& arguments,
    const Strategy& strategy);

/// Gives all ranks rank 0's parameters and buffers, then averages gradients.
std::unique_ptr<ParallelEngine> make_ddp_engine(
    const EngineArguments& arguments,
    const DdpOptions& options);

/// Cuts parameters, gradients or what optimizers train into one part per rank,
/// beginning with rank 0's values.
std::unique_ptr<ParallelEngine> make_shard_engine(
    const EngineArguments& arguments,
    const ShardingOptions& options);

} // namespace accelerate
