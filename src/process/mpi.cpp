// SPDX-License-Identifier: Apache-2.0
// Open MPI, MVAPICH, and PMI (MPICH, Intel MPI).
#include <ios>

#include "base/stable_hash.h"
#include "base/str.h"
#include "process/cluster_environment.h"

namespace accelerate {
namespace {

constexpr RankVariables kMpiFlavours[] = {
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

// Variables that are the same on all ranks of one job and differ between jobs.
constexpr const char* kJobNames[] = {
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "MPIRUN_ID"};

} // namespace

std::optional<ProcessEnvironment> detect_mpi(const EnvReader& env) {
  for (const auto& flavour : kMpiFlavours) {
    auto found = read_ranks(env, flavour);
    if (!found) {
      continue;
    }
    std::string job;
    bool is_named = false;
    for (const char* name : kJobNames) {
      const auto value = env.text(name);
      job += value.value_or("") + '/';
      is_named = is_named || value;
    }
    if (is_named) {
      found->job = str_cat("mpi-", std::hex, stable_hash(job));
    }
    // MPI names no host: on one machine it is this one, else MASTER_ADDR must
    // say it.
    const auto& topology = found->topology;
    const bool one_machine = topology.local_world_size == topology.world_size;
    found->rendezvous = read_rendezvous(
        env, {one_machine ? "127.0.0.1" : "", port_of_job(stable_hash(job))});
    return found;
  }
  return std::nullopt;
}

} // namespace accelerate
