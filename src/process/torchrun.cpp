// SPDX-License-Identifier: Apache-2.0
// torchrun, our own launcher, and Kubernetes' PyTorchJob.
#include "accelerate/error.h"
#include "base/str.h"
#include "process/cluster_environment.h"

namespace accelerate {

std::optional<ProcessEnvironment> detect_torchrun(const EnvReader& env) {
  auto found = read_ranks(
      env,
      {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (!found) {
    const auto world_size = env.number("WORLD_SIZE", 1);
    if (world_size.value_or(1) > 1) {
      throw ConfigError(str_cat(
          "[detect_environment] WORLD_SIZE=",
          *world_size,
          " is set but RANK is not; set both or neither"));
    }
    return std::nullopt;
  }
  if (const auto node = env.number("GROUP_RANK")) {
    found->topology.node_rank = *node;
  }
  found->rendezvous = read_rendezvous(env, {});
  found->rendezvous.is_hosted =
      env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return found;
}

} // namespace accelerate
