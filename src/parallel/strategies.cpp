// SPDX-License-Identifier: Apache-2.0
#include "parallel/strategies.h"

#include "accelerate/error.h"
#include "parallel/master_weights.h"
#include "parallel/shard_units.h"
#include "state/deferred_tensors.h"

namespace accelerate {
namespace {

/// One row per strategy.
struct MakeEngine {
  const EngineArguments& arguments;

  std::unique_ptr<ParallelEngine> operator()(const SingleDevice& alone) const {
    if (alone.shard.stage != ShardStage::kNone) {
      check_sharding(arguments.model, alone.shard);
    }
    return std::make_unique<ParallelEngine>();
  }
  std::unique_ptr<ParallelEngine> operator()(const DdpOptions& options) const {
    return make_ddp_engine(arguments, options);
  }
  std::unique_ptr<ParallelEngine> operator()(
      const ShardingOptions& options) const {
    return make_shard_engine(arguments, options);
  }
  std::unique_ptr<ParallelEngine> operator()(const OwnEngine& own) const {
    auto engine = own.make(arguments);
    if (!engine) {
      throw UsageError(
          "[prepare] OwnEngine::make returned no engine. Return one for each "
          "model");
    }
    return engine;
  }
};

} // namespace

std::shared_ptr<ParallelEngine> make_engine(
    const EngineArguments& arguments,
    const Strategy& strategy) {
  const auto make = [&](const EngineArguments& from) {
    return std::visit(MakeEngine{from}, strategy);
  };
  fill_deferred(arguments.model.buffers, arguments.device);
  const auto* shard = std::get_if<ShardingOptions>(&strategy);
  if (shard == nullptr || shard->stage != ShardStage::kParameters) {
    fill_deferred(arguments.model.parameters, arguments.device);
  }
  // Shards are already master weights.
  const bool has_masters = std::holds_alternative<ShardingOptions>(strategy);
  return arguments.weights && !has_masters ? make_master_engine(arguments, make)
                                           : make(arguments);
}

} // namespace accelerate
