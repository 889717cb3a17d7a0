// SPDX-License-Identifier: Apache-2.0
// Plans the shard units of a model.
#pragma once

#include <string>
#include <vector>

#include "accelerate/distributed/sharding.h"
#include "training/state/parameter_set.h"

namespace accelerate {

struct ShardUnitPlan {
  /// The prefix of its parameters' names; empty for those without a match.
  std::string prefix;
  /// Indices into the lists of the model; of one dtype and device, all trained
  /// or all frozen.
  std::vector<size_t> members;
};

/// Throws `UsageError` if the options are invalid, or do not match this model.
void check_sharding(const ParameterSet& model, const ShardingOptions& options);

/// A model in two parts: what is sharded, with all buffers, and what the
/// options or the model leave whole.
struct ShardedParameters {
  ParameterSet sharded;
  ParameterSet whole;
};
ShardedParameters split_parameters(
    const ParameterSet& model,
    const ShardingOptions& options);

/// In the order of their first parameters.
std::vector<ShardUnitPlan> plan_shard_units(
    const ParameterSet& model,
    const ShardingOptions& options);

} // namespace accelerate
