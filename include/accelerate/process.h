// SPDX-License-Identifier: Apache-2.0
// The rank of this process among all processes of a run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// Ranks and sizes of one run. A plain value that tests can construct.
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

/// The address and TCP port of rank 0, at which the ranks of a run connect.
/// Unknown if the address is empty or the port is 0.
struct ACCELERATE_API Rendezvous {
  std::string address = {};
  int port = 0;
  /// The starter already listens there (torchrun's agent), so rank 0 must not.
  bool is_hosted = false;
  /// How often the starter has restarted the run.
  int attempt = 0;
  /// The network interface to use (GLOO_SOCKET_IFNAME); if empty, the one that
  /// leads to `address`.
  std::string interface = {};
  /// Set by `accelerate launch` for all ranks but 0: the process of rank 0, or
  /// 0 if it runs on another machine. These ranks then wait for rank 0 to
  /// listen as long as it is alive (30 minutes if on another machine).
  std::optional<int> main_pid = {};

  bool operator==(const Rendezvous&) const = default;
};

/// A program that starts the processes of runs: one row of a table.
struct ACCELERATE_API Starter {
  /// The name for messages: "torchrun", "Open MPI", "MVAPICH", "PMI", "Slurm".
  const char* name = "";
  /// Whether a process without a local rank is not a rank but represents a
  /// machine, whose ranks a launcher still has to start.
  bool omits_local_rank_of_machines = false;
};

/// The settings that the starter of this process (a launcher, MPI, Slurm) has
/// passed.
struct ACCELERATE_API ProcessEnvironment {
  ProcessTopology topology;
  Rendezvous rendezvous;
  /// What started the process; null if it was not started as part of a run.
  const Starter* starter = nullptr;
  /// For Slurm and MPI: identifies the job, with the same value on all its
  /// machines; usable in file names. Empty if unknown.
  std::string job = {};

  /// "none" without a starter.
  const char* starter_name() const { return starter ? starter->name : "none"; }
  bool operator==(const ProcessEnvironment&) const = default;
};

/// Looks up an environment variable. Tests pass a map; programs pass
/// `system_env`.
using EnvLookup =
    std::function<std::optional<std::string>(const std::string& name)>;
ACCELERATE_API std::optional<std::string> system_env(const std::string& name);

/// Reads what the launcher, torchrun (also in a Kubernetes PyTorchJob), MPI or
/// Slurm has set in the environment, in this order; returns a single process if
/// none has. MASTER_ADDR and MASTER_PORT take precedence over a derived
/// address. Throws `ConfigError` naming the variable and its value if a
/// variable is not a number, is missing while related ones are set, or
/// contradicts them.
ACCELERATE_API ProcessEnvironment
detect_environment(const EnvLookup& env = system_env);

/// Only the topology: `detect_environment(env).topology`.
ACCELERATE_API ProcessTopology
detect_topology(const EnvLookup& env = system_env);

} // namespace accelerate
