// SPDX-License-Identifier: Apache-2.0
// Any bytes as Slurm's lists of nodes and of tasks: rejected, or parsed to a
// host and a consistent rank.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "accelerate/error.h"
#include "core/base/host_name.h"
#include "core/process/cluster_environment.h"
#include "require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accelerate;
  const std::string text(reinterpret_cast<const char*>(data), size);
  // The first line is the list of nodes, the second that of tasks.
  const size_t end = std::min(text.find('\n'), text.size());
  const std::map<std::string, std::string> variables = {
      {"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "64"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "1"},
      {"SLURM_JOB_ID", "7"},
      {"SLURM_JOB_NODELIST", text.substr(0, end)},
      {"SLURM_STEP_TASKS_PER_NODE",
       end < text.size() ? text.substr(end + 1) : "1(x64)"}};
  const EnvLookup env =
      [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt
                                    : std::optional(found->second);
  };
  try {
    const auto found = detect_environment(env);
    require(found.starter != nullptr);
    require(
        found.rendezvous.address.empty() ||
        is_host_name(found.rendezvous.address));
    require(found.topology.local_rank < found.topology.local_world_size);
  } catch (const ConfigError&) {
    // Refused, as the contract says.
  }
  return 0;
}
