// SPDX-License-Identifier: Apache-2.0
// Which parameters of a sharded model travel together.
#pragma once

#include <string>
#include <vector>

#include "accelerate/sharding.h"
#include "state/parameter_set.h"

namespace accelerate {

struct ShardUnitPlan {
  /// What the names of its parameters begin with; empty for those that fit
  /// nowhere.
  std::string prefix;
  /// Into the lists of the model; of one dtype and device, all trained or all
  /// frozen.
  std::vector<size_t> members;
};

/// Throws `UsageError` where the options are not for this model, or for none.
void check_sharding(const ParameterSet& model, const ShardingOptions& options);

/// A model in two: what is cut, with all buffers, and what the options or the
/// model itself leave whole.
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
