// SPDX-License-Identifier: Apache-2.0
// Plans the shard units of a model.
#pragma once

#include <string>
#include <vector>

#include "accelerate/distributed/sharding.h"
#include "training/state/parameter_set.h"

namespace accelerate {

struct ShardUnitPlan {
  /// The prefix of the parameters' names. Empty for parameters without a match.
  std::string prefix;
  /// Indices into the lists of the model. All members have one dtype and
  /// device, and are all trained or all frozen.
  std::vector<size_t> members;
};

/// Throws `UsageError` if the options are invalid or do not fit this model.
void check_sharding(const ParameterSet& model, const ShardingOptions& options);

/// A model in two sets: the sharded parameters with all buffers, and the
/// parameters that the options or the model keep whole.
struct ShardedParameters {
  ParameterSet sharded;
  ParameterSet whole;
};
ShardedParameters split_parameters(
    const ParameterSet& model,
    const ShardingOptions& options);

/// Plans the units, in the order of their first parameters.
std::vector<ShardUnitPlan> plan_shard_units(
    const ParameterSet& model,
    const ShardingOptions& options);

} // namespace accelerate
