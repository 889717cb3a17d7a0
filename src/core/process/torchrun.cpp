// SPDX-License-Identifier: Apache-2.0
// torchrun, our own launcher, and Kubernetes' PyTorchJob.
#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/process/cluster_environment.h"

namespace accelerate {

std::optional<ProcessEnvironment> detect_torchrun(
    const EnvReader& env,
    const StarterRow& row) {
  auto found = read_ranks(env, row);
  if (!found) {
    const auto world_size = env.number(row.names.world_size, 1);
    if (world_size.value_or(1) > 1) {
      throw ConfigError(str_cat(
          "[detect_environment] ",
          row.names.world_size,
          "=",
          *world_size,
          " is set but ",
          row.names.rank,
          " is not; set both or neither"));
    }
    return std::nullopt;
  }
  if (const auto node = env.number(variables::kGroupRank)) {
    found->topology.node_rank = *node;
  }
  found->rendezvous = read_rendezvous(env, {});
  found->rendezvous.main_pid = env.number(variables::kMainPid);
  found->rendezvous.is_hosted = env.text(variables::kUseAgentStore) == "True";
  return found;
}

} // namespace accelerate
