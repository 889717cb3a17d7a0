// SPDX-License-Identifier: Apache-2.0
// Where this launcher stands: alone, one of several machines, or inside a task
// that a cluster already made for one rank.
#pragma once

#include <optional>
#include <string>

#include "accelerate/export.h"
#include "accelerate/process.h"
#include "config/launch_config.h"

namespace accelerate {

/// The rank of a machine of an elastic job to which machine 0 gives a place.
inline constexpr int kAnyMachine = -1;

struct Placement {
  /// The cluster started one task per rank: the program runs in place of the
  /// launcher, with `environment`.
  bool is_in_place = false;
  ProcessEnvironment environment = {};

  /// Of an elastic job, the most that it may have.
  int num_machines = 1;
  /// Set where the job is elastic: the fewest that it runs with.
  std::optional<int> least_machines = {};
  /// `kAnyMachine` where machine 0 decides.
  int machine_rank = 0;
  /// Of machine 0, where the launchers meet; empty on one machine.
  Rendezvous meeting_point = {};
  /// Machine 0 cannot tell its own address from what it was given (the address
  /// of a Kubernetes service): it listens on all of its addresses.
  bool listens_everywhere = false;
};

/// What a launcher reads its configuration from: `env` without the address and
/// port of an outer job if this program is one of that job's workers.
ACCELERATE_API EnvLookup variables_of_new_job(const EnvLookup& env);

/// Flags and ACCELERATE_* variables decide first, then what Slurm, MPI,
/// torchrun or Kubernetes left in `env`, then the file. A launcher inside a
/// worker of another launcher starts a job of its own on this machine. Throws
/// `ConfigError` where they contradict each other or where nobody names
/// machine 0.
ACCELERATE_API Placement
find_placement(const ResolvedConfig& config, const EnvLookup& env);

/// The machine rank that the options give this machine. Where they give none
/// for an elastic job, the machine that has `main_process_ip` is machine 0, and
/// the others are `kAnyMachine`.
ACCELERATE_API int machine_rank_of(const ResolvedConfig& config);

/// The address that machine 0 listens on; empty: all of its addresses, which is
/// also where its name is a loopback address to itself (/etc/hosts): the others
/// would knock in vain.
ACCELERATE_API std::string listening_address(const Placement& placement);

/// Whether only programs of this machine can reach the meeting point.
ACCELERATE_API bool is_loopback_only(const Placement& placement);

} // namespace accelerate
