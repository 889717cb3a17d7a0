// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "base/parse.h"
#include "base/str.h"
#include "process/cluster_environment.h"

namespace accelerate {

std::optional<std::string> system_env(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::string> EnvReader::text(const std::string& name) const {
  auto value = env_(name);
  if (value && value->empty()) {
    return std::nullopt;
  }
  return value;
}

std::optional<int> EnvReader::number(const std::string& name, int least) const {
  const auto value = text(name);
  if (!value) {
    return std::nullopt;
  }
  const auto number = parse_number<int>(*value);
  if (!number || *number < least) {
    throw ConfigError(str_cat(
        "[detect_environment] ",
        name,
        "='",
        *value,
        "' is not a whole number of at least ",
        least,
        "; correct or unset it"));
  }
  return number;
}

int EnvReader::required(
    const std::string& name,
    const std::string& because,
    int least) const {
  const auto value = number(name, least);
  if (!value) {
    throw ConfigError(str_cat(
        "[detect_environment] ",
        because,
        "='",
        text(because).value_or(""),
        "' is set but ",
        name,
        " is not; set both or neither"));
  }
  return *value;
}

namespace {

void check_below(
    const char* rank_name,
    int rank,
    const std::string& size_name,
    int size) {
  if (rank >= size) {
    throw ConfigError(str_cat(
        "[detect_environment] ",
        rank_name,
        "=",
        rank,
        " does not fit ",
        size_name,
        "=",
        size,
        "; ranks count from 0 to ",
        size - 1));
  }
}

} // namespace

std::optional<ProcessEnvironment> read_ranks(
    const EnvReader& env,
    const RankVariables& names) {
  const auto rank = env.number(names.rank);
  if (!rank) {
    return std::nullopt;
  }
  ProcessEnvironment found;
  found.source = names.source;
  ProcessTopology& topology = found.topology;
  topology.rank = *rank;
  topology.world_size = env.required(names.world_size, names.rank, 1);
  check_below(names.rank, *rank, names.world_size, topology.world_size);

  topology.local_rank = env.number(names.local_rank).value_or(0);
  topology.local_world_size = topology.local_rank + 1;
  if (names.local_world_size != nullptr) {
    const auto size = env.number(names.local_world_size, 1);
    topology.local_world_size = size.value_or(topology.local_world_size);
    check_below(
        names.local_rank,
        topology.local_rank,
        names.local_world_size,
        topology.local_world_size);
  }
  if (topology.local_world_size > topology.world_size) {
    throw ConfigError(str_cat(
        "[detect_environment] ",
        topology.local_world_size,
        " local processes (from ",
        names.local_rank,
        " and its kin) are more than ",
        names.world_size,
        "=",
        topology.world_size,
        "; correct one of them"));
  }
  topology.node_rank = topology.rank / topology.local_world_size;
  return found;
}

Rendezvous read_rendezvous(const EnvReader& env, const Rendezvous& fallback) {
  Rendezvous result = fallback;
  result.address = env.text("MASTER_ADDR").value_or(fallback.address);
  result.port = env.number("MASTER_PORT", 1).value_or(fallback.port);
  if (result.port > 65535) {
    throw ConfigError(str_cat(
        "[detect_environment] MASTER_PORT=",
        result.port,
        " is not a TCP port; use 1 to 65535"));
  }
  result.attempt = env.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  result.interface = env.text("GLOO_SOCKET_IFNAME").value_or("");
  return result;
}

int port_of_job(uint64_t job) {
  constexpr uint64_t kFirst = 12000;
  constexpr uint64_t kCount = 20000;
  // A multiplicative hash: neighbouring jobs land far apart.
  const uint64_t mixed = (job + 1) * 0x9E3779B97F4A7C15ULL;
  return static_cast<int>(kFirst + (mixed >> 32) % kCount);
}

ProcessEnvironment detect_environment(const EnvLookup& env) {
  // torchrun's variables come first: they are the innermost starter's where
  // srun or mpirun started a launcher per machine.
  const EnvReader reader(env);
  for (const auto detect : {detect_torchrun, detect_mpi, detect_slurm}) {
    if (auto found = detect(reader)) {
      return *found;
    }
  }
  return {};
}

ProcessTopology detect_topology(const EnvLookup& env) {
  return detect_environment(env).topology;
}

} // namespace accelerate
