// SPDX-License-Identifier: Apache-2.0
// The role of this launcher: alone, on one of several machines, or inside a
// task that a cluster created for one rank.
#pragma once

#include <optional>
#include <string>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/config/launch_config.h"

namespace accelerate {

/// The rank of a machine of an elastic job before machine 0 assigns one.
inline constexpr int kAnyMachine = -1;

struct Placement {
  /// Whether the cluster has started one task per rank. The program then
  /// replaces the launcher, with `environment`.
  bool is_in_place = false;
  ProcessEnvironment environment = {};

  /// The number of machines. For an elastic job, this is the maximum.
  int num_machines = 1;
  /// Set if the job is elastic: the minimum number of machines.
  std::optional<int> least_machines = {};
  /// The index of this machine, or `kAnyMachine` if machine 0 chooses it.
  int machine_rank = 0;
  /// Machine 0's address, where launchers connect. Empty on one machine.
  Rendezvous rendezvous = {};
  /// Whether machine 0 listens on all of its addresses, because it cannot
  /// derive its own address from the given one (the address of a Kubernetes
  /// service).
  bool listens_everywhere = false;
};

/// The variables from which a launcher reads its configuration: `env`, without
/// the address and port of an outer job if this program is one of that job's
/// workers.
ACCELERATE_INTERNAL EnvLookup variables_of_new_job(const EnvLookup& env);

/// Precedence: flags and ACCELERATE_* variables, then what Slurm, MPI, torchrun
/// or Kubernetes have set in `env`, then the file. A launcher inside a worker
/// of another launcher starts its own job on this machine. Throws `ConfigError`
/// if they contradict each other or the address of machine 0 is missing.
ACCELERATE_INTERNAL Placement
find_placement(const ResolvedConfig& config, const EnvLookup& env);

/// The machine rank that the options give this machine. If they give none for
/// an elastic job, the machine with the address `main_process_ip` is machine 0,
/// and the others are `kAnyMachine`.
int machine_rank_of(const ResolvedConfig& config);

/// The address that machine 0 listens on. Empty means all of its addresses. It
/// is also empty if machine 0 resolves its own name to a loopback address
/// (/etc/hosts), where others could not connect.
std::string listening_address(const Placement& placement);

/// Whether only programs on this machine can connect to machine 0.
bool is_loopback_only(const Placement& placement);

} // namespace accelerate
