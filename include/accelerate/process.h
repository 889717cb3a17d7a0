// SPDX-License-Identifier: Apache-2.0
// Where this process sits among all the processes of a run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// Ranks and sizes of one run. A plain value: copy it, compare it, make one in
/// a test.
struct ACCELERATE_API ProcessTopology {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;

  bool is_main() const { return rank == 0; }
  bool is_local_main() const { return local_rank == 0; }
  bool is_last() const { return rank == world_size - 1; }
  bool operator==(const ProcessTopology&) const = default;
};

/// Where the ranks of a run first meet: a TCP port that rank 0 listens on.
/// An empty address or port 0 means that nobody has said it.
struct ACCELERATE_API Rendezvous {
  std::string address = {};
  int port = 0;
  /// The starter listens there already (torchrun's agent): rank 0 must not.
  bool is_hosted = false;
  /// How often the starter has restarted the run.
  int attempt = 0;
  /// The network interface to speak through (GLOO_SOCKET_IFNAME); where empty,
  /// the one that leads to `address`.
  std::string interface = {};
  /// Set by `accelerate launch` for all ranks but 0: the process of rank 0, or
  /// 0 if it runs on another machine. The others then wait for rank 0 to
  /// listen for as long as it lives (30 minutes on another machine).
  std::optional<int> main_pid = {};

  bool operator==(const Rendezvous&) const = default;
};

/// A program that starts the processes of runs: one row of a table.
struct ACCELERATE_API Starter {
  /// For messages: "torchrun", "Open MPI", "MVAPICH", "PMI", "Slurm".
  const char* name = "";
  /// Whether a process without a local rank is not a rank but stands for a
  /// machine, whose ranks a launcher has still to start.
  bool omits_local_rank_of_machines = false;
};

/// What the starter of this process (a launcher, MPI, Slurm) told it.
struct ACCELERATE_API ProcessEnvironment {
  ProcessTopology topology;
  Rendezvous rendezvous;
  /// Who said so; null for a process that nobody started as part of a run.
  const Starter* starter = nullptr;
  /// Of Slurm and MPI: names the job, alike on all its machines and different
  /// from every other job's; may be part of a file's name. Empty: unknown.
  std::string job = {};

  /// "none" without a starter.
  const char* starter_name() const { return starter ? starter->name : "none"; }
  bool operator==(const ProcessEnvironment&) const = default;
};

/// Looks one environment variable up. Tests pass a map; programs pass
/// `system_env`.
using EnvLookup =
    std::function<std::optional<std::string>(const std::string& name)>;
ACCELERATE_API std::optional<std::string> system_env(const std::string& name);

/// Reads what the launcher, torchrun (also in a Kubernetes PyTorchJob), MPI or
/// Slurm left in the environment, in this order; a single process where none
/// did. MASTER_ADDR and MASTER_PORT, where set, win over a derived meeting
/// point. Throws `ConfigError` naming the variable and its value where a
/// variable is not a number, is missing beside its kin, or disagrees with them.
ACCELERATE_API ProcessEnvironment
detect_environment(const EnvLookup& env = system_env);

/// The topology alone: `detect_environment(env).topology`.
ACCELERATE_API ProcessTopology
detect_topology(const EnvLookup& env = system_env);

} // namespace accelerate
