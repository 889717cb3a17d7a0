// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/placement.h"

#include <cctype>

#include "accelerate/error.h"
#include "core/base/host_name.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"
#include "core/process/cluster_environment.h"

namespace accelerate {
namespace {

bool is_set(const EnvLookup& env, const char* name) {
  const auto value = env(name);
  return value && !value->empty();
}

bool is_explicit(const ResolvedConfig& config, const char* field) {
  return config.kind_of(field) >= SourceKind::kEnvironment;
}

// The placement of a pod of Kubernetes' training operator, which sets
// torchrun's options as PET_*.
std::optional<Placement> from_pet_variables(const EnvLookup& env) {
  if (!is_set(env, variables::kPetNumNodes) ||
      is_set(env, variables::kLocalRank)) {
    return std::nullopt;
  }
  // Check these under their own names, because a message about WORLD_SIZE would
  // mislead.
  EnvReader(env).number(variables::kPetNumNodes, 1);
  EnvReader(env).number(variables::kPetNodeRank, 0);
  const auto renamed = [&](const std::string& name) {
    if (name == variables::kRank) {
      const auto rank = env(variables::kPetNodeRank);
      return rank ? rank : env(variables::kRank);
    }
    if (name == variables::kWorldSize) {
      return env(variables::kPetNumNodes);
    }
    const auto value = env(variables::kPetPrefix + name);
    return value ? value : env(name);
  };
  Placement placement;
  placement.environment = detect_environment(renamed);
  placement.listens_everywhere = true;
  return placement;
}

// Whether this process is a worker: the launcher sets these two variables only
// for its workers.
bool is_in_worker(const EnvLookup& env) {
  return is_set(env, variables::kMainPid) || is_set(env, variables::kRunReport);
}

Placement from_cluster(const EnvLookup& env) {
  Placement placement;
  if (is_in_worker(env)) {
    return placement;
  }
  if (auto found = from_pet_variables(env)) {
    placement = *found;
  } else {
    placement.environment = detect_environment(env);
    const Starter* starter = placement.environment.starter;
    if (starter != nullptr && starter->omits_local_rank_of_machines) {
      placement.is_in_place = is_set(env, variables::kLocalRank);
      // In Kubernetes' PyTorchJob, the address is that of a service.
      placement.listens_everywhere = !placement.is_in_place;
    } else if (starter != nullptr) {
      placement.is_in_place =
          placement.environment.topology.local_world_size > 1;
    }
  }
  const auto& environment = placement.environment;
  if (!placement.is_in_place) {
    placement.num_machines = environment.topology.world_size;
    placement.machine_rank = environment.topology.rank;
    placement.rendezvous = environment.rendezvous;
  }
  return placement;
}

void check_in_place(const ResolvedConfig& config, const Placement& placement) {
  const auto& wanted = config.values.num_processes;
  const auto& environment = placement.environment;
  if (config.kind_of("num_processes") == SourceKind::kFlag && wanted &&
      *wanted != environment.topology.world_size) {
    throw ConfigError(str_cat(
        "[launch] --num_processes is ",
        *wanted,
        ", but ",
        environment.starter_name(),
        " has started ",
        environment.topology.world_size,
        " tasks, one per rank. Remove --num_processes, or start one task per "
        "machine"));
  }
}

} // namespace

EnvLookup variables_of_new_job(const EnvLookup& env) {
  if (!is_in_worker(env)) {
    return env;
  }
  return [env](const std::string& name) {
    const bool is_outer =
        name == variables::kMasterAddress || name == variables::kMasterPort;
    return is_outer ? std::nullopt : env(name);
  };
}

Placement find_placement(const ResolvedConfig& config, const EnvLookup& env) {
  const LaunchConfig& values = config.values;
  Placement placement;
  if (!is_explicit(config, "num_machines")) {
    placement = from_cluster(env);
    if (placement.is_in_place) {
      check_in_place(config, placement);
      return placement;
    }
  }
  if (placement.num_machines == 1) {
    placement.num_machines = values.num_machines.most;
    if (values.num_machines.is_elastic()) {
      placement.least_machines = values.num_machines.least;
    }
    placement.machine_rank = machine_rank_of(config);
    placement.rendezvous = {};
    placement.listens_everywhere = false;
  }
  if (placement.num_machines == 1) {
    return placement;
  }
  if (!values.main_process_ip.empty() &&
      (placement.rendezvous.address.empty() ||
       is_explicit(config, "main_process_ip"))) {
    placement.rendezvous.address = values.main_process_ip;
  }
  placement.rendezvous.address =
      std::string(without_brackets(placement.rendezvous.address));
  const bool is_port_known = placement.rendezvous.port != 0;
  if (values.main_process_port.value_or(0) != 0 &&
      (!is_port_known || is_explicit(config, "main_process_port"))) {
    placement.rendezvous.port = *values.main_process_port;
  } else if (!is_port_known) {
    placement.rendezvous.port = kDefaultMainProcessPort;
  }
  if (placement.rendezvous.address.empty()) {
    throw ConfigError(str_cat(
        "[launch] --num_machines ",
        placement.num_machines,
        " needs the address of machine 0; pass --main_process_ip HOST (or set ",
        variables::kMasterAddress,
        ") on every machine"));
  }
  return placement;
}

int machine_rank_of(const ResolvedConfig& config) {
  const LaunchConfig& values = config.values;
  const std::string address(without_brackets(values.main_process_ip));
  if (!values.num_machines.is_elastic() || address.empty() ||
      config.kind_of("machine_rank") != SourceKind::kDefault) {
    return values.machine_rank;
  }
  try {
    return is_this_machine(address) ? 0 : kAnyMachine;
  } catch (const CommError&) {
    return kAnyMachine; // a name that does not resolve yet is another machine's
  }
}

std::string listening_address(const Placement& placement) {
  const std::string& address = placement.rendezvous.address;
  if (placement.listens_everywhere) {
    return {};
  }
  const bool is_name =
      std::isdigit(static_cast<unsigned char>(address[0])) == 0 &&
      address.find(':') == std::string::npos && !is_loopback_name(address);
  return is_name && is_loopback(resolve_host(address)[0]) ? "" : address;
}

bool is_loopback_only(const Placement& placement) {
  try {
    const std::string address = listening_address(placement);
    return is_loopback_name(address) ||
           (!address.empty() && is_loopback(resolve_host(address)[0]));
  } catch (const CommError&) {
    return false; // a name that does not resolve yet is another machine's
  }
}

} // namespace accelerate
