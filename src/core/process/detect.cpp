// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <limits>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/process/cluster_environment.h"

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
        printable(*value),
        "' is not a whole number from ",
        least,
        " to ",
        std::numeric_limits<int>::max(),
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
        " is too large for ",
        size_name,
        "=",
        size,
        "; ranks go from 0 to ",
        size - 1));
  }
}

} // namespace

std::optional<ProcessEnvironment> read_ranks(
    const EnvReader& env,
    const StarterRow& row) {
  const RankVariables& names = row.names;
  const auto rank = env.number(names.rank);
  if (!rank) {
    return std::nullopt;
  }
  ProcessEnvironment found;
  found.starter = &row.starter;
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
        " and related variables) are more than ",
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
  result.address =
      env.text(variables::kMasterAddress).value_or(fallback.address);
  result.port = env.number(variables::kMasterPort, 1).value_or(fallback.port);
  if (result.port > 65535) {
    throw ConfigError(str_cat(
        "[detect_environment] ",
        variables::kMasterPort,
        "=",
        result.port,
        " is not a TCP port; use 1 to 65535"));
  }
  result.attempt = env.number(variables::kRestartCount).value_or(0);
  result.interface = env.text(variables::kGlooInterface).value_or("");
  return result;
}

int port_of_job(uint64_t job) {
  constexpr uint64_t kFirst = 12000;
  constexpr uint64_t kCount = 20000;
  // A multiplicative hash: consecutive jobs get distant ports.
  const uint64_t mixed = (job + 1) * 0x9E3779B97F4A7C15ULL;
  return static_cast<int>(kFirst + (mixed >> 32) % kCount);
}

namespace {

// torchrun comes first: if srun or mpirun started a launcher per machine, its
// variables are those of the innermost starter.
constexpr StarterRow kStarters[] = {
    {{.name = "torchrun", .omits_local_rank_of_machines = true},
     {variables::kRank,
      variables::kWorldSize,
      variables::kLocalRank,
      variables::kLocalWorldSize},
     detect_torchrun},
    {{.name = "Open MPI"},
     {variables::kOpenMpiRank,
      variables::kOpenMpiSize,
      variables::kOpenMpiLocalRank,
      variables::kOpenMpiLocalSize},
     detect_mpi},
    {{.name = "MVAPICH"},
     {variables::kMvapichRank,
      variables::kMvapichSize,
      variables::kMvapichLocalRank,
      variables::kMvapichLocalSize},
     detect_mpi},
    {{.name = "PMI"},
     {variables::kPmiRank,
      variables::kPmiSize,
      variables::kPmiLocalRank,
      variables::kPmiLocalSize},
     detect_mpi},
    {{.name = "Slurm"},
     {variables::kSlurmRank,
      variables::kSlurmTasks,
      variables::kSlurmLocalRank,
      nullptr},
     detect_slurm},
};

} // namespace

ProcessEnvironment detect_environment(const EnvLookup& env) {
  const EnvReader reader(env);
  for (const StarterRow& row : kStarters) {
    if (auto found = row.detect(reader, row)) {
      return *found;
    }
  }
  return {};
}

ProcessTopology detect_topology(const EnvLookup& env) {
  return detect_environment(env).topology;
}

} // namespace accelerate
