// SPDX-License-Identifier: Apache-2.0
// Open MPI, MVAPICH, and PMI (MPICH, Intel MPI).
#include <ios>

#include "core/base/stable_hash.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/process/cluster_environment.h"

namespace accelerate {
namespace {

// Variables that are the same on all ranks of one job and differ between jobs.
constexpr const char* kJobNames[] = {
    variables::kPmixJob,
    variables::kOpenMpiJob,
    variables::kPmiJob,
    variables::kMvapichJob};

} // namespace

std::optional<ProcessEnvironment> detect_mpi(
    const EnvReader& env,
    const StarterRow& row) {
  auto found = read_ranks(env, row);
  if (!found) {
    return std::nullopt;
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
  // MPI provides no host name. On one machine, use this one; otherwise,
  // MASTER_ADDR is required.
  const auto& topology = found->topology;
  const bool one_machine = topology.local_world_size == topology.world_size;
  found->rendezvous = read_rendezvous(
      env, {one_machine ? "127.0.0.1" : "", port_of_job(stable_hash(job))});
  return found;
}

} // namespace accelerate
