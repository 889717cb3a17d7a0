// SPDX-License-Identifier: Apache-2.0
// The rank of this process among all processes of a run.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// The rank of this process and the number of processes. A plain value that
/// tests can construct.
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

/// The address and TCP port of rank 0, to which the ranks of a run connect.
/// They are unknown if the address is empty or the port is 0.
struct ACCELERATE_API Rendezvous {
  std::string address = {};
  int port = 0;
  /// Whether the starter (such as torchrun's agent) already listens on this
  /// address. In this case, rank 0 does not listen.
  bool is_hosted = false;
  /// How often the starter has restarted the run.
  int attempt = 0;
  /// The network interface to use (GLOO_SOCKET_IFNAME). If empty, the interface
  /// that leads to `address` is used.
  std::string interface = {};
  /// The process ID of rank 0, or 0 if rank 0 runs on another machine.
  /// `accelerate launch` sets it for all ranks except rank 0. These ranks then
  /// wait for rank 0 to listen as long as its process is alive, or for 30
  /// minutes if it runs on another machine.
  std::optional<int> main_pid = {};

  bool operator==(const Rendezvous&) const = default;
};

/// A program that starts the processes of runs. It is one row of a table.
struct ACCELERATE_API Starter {
  /// The name in messages: "torchrun", "Open MPI", "MVAPICH", "PMI" or "Slurm".
  const char* name = "";
  /// Whether a process without a local rank represents a machine instead of a
  /// rank. A launcher must then start the ranks of this machine.
  bool omits_local_rank_of_machines = false;
};

/// The settings that the starter of this process (a launcher, MPI or Slurm) has
/// passed to it.
struct ACCELERATE_API ProcessEnvironment {
  ProcessTopology topology;
  Rendezvous rendezvous;
  /// The starter of the process. Null if the process was not started as part of
  /// a run.
  const Starter* starter = nullptr;
  /// Identifies a job of Slurm or MPI. The value is the same on all machines of
  /// the job and can be used in file names. Empty if it is unknown.
  std::string job = {};

  /// Returns the starter's name, or "none" without a starter.
  const char* starter_name() const { return starter ? starter->name : "none"; }
  bool operator==(const ProcessEnvironment&) const = default;
};

/// Looks up an environment variable. Tests pass a map, and programs pass
/// `system_env`.
using EnvLookup =
    std::function<std::optional<std::string>(const std::string& name)>;
ACCELERATE_API std::optional<std::string> system_env(const std::string& name);

/// Reads what the launcher, torchrun (also in a Kubernetes PyTorchJob), MPI or
/// Slurm has set in the environment, in this order. If none of them has set
/// anything, returns a single process. MASTER_ADDR and MASTER_PORT take
/// precedence over a derived address. Throws `ConfigError` if a variable is not
/// a number, is missing while related variables are set, or contradicts them.
/// The message names the variable and its value.
ACCELERATE_API ProcessEnvironment
detect_environment(const EnvLookup& env = system_env);

/// Returns only the topology: `detect_environment(env).topology`.
ACCELERATE_API ProcessTopology
detect_topology(const EnvLookup& env = system_env);

} // namespace accelerate
