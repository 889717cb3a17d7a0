// SPDX-License-Identifier: Apache-2.0
// Starters of processes that we recognise by the variables they leave.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/process.h"

namespace accelerate {

/// Reads variables and refuses bad ones with a message that names them.
class EnvReader {
 public:
  explicit EnvReader(const EnvLookup& env) : env_(env) {}

  /// The value, or nothing where the variable is unset or empty.
  std::optional<std::string> text(const std::string& name) const;
  /// A number of at least `least`; nothing where unset.
  std::optional<int> number(const std::string& name, int least = 0) const;
  /// As `number`, where `because` (another variable) is set.
  int required(const std::string& name, const std::string& because, int least)
      const;

 private:
  const EnvLookup& env_;
};

/// The names under which one starter publishes ranks and sizes.
struct RankVariables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  /// May be null where the starter has no plain number for it.
  const char* local_world_size;
};

/// One row of the table of starters in `detect.cpp`.
struct StarterRow {
  Starter starter;
  RankVariables names;
  /// Nothing where this starter did not start the process.
  std::optional<ProcessEnvironment> (
      *detect)(const EnvReader& env, const StarterRow& row);
};

/// Reads the row's names; nothing where the rank variable is unset. A missing
/// local rank means one process per machine; a missing local size, as many as
/// the local rank proves. Checks that every rank lies below its size.
std::optional<ProcessEnvironment> read_ranks(
    const EnvReader& env,
    const StarterRow& row);

/// MASTER_ADDR and MASTER_PORT, where set, else `fallback`.
Rendezvous read_rendezvous(const EnvReader& env, const Rendezvous& fallback);

/// A port for a job that was given none: the same on all ranks, different for
/// most jobs, outside of the range that systems hand out for outgoing
/// connections.
int port_of_job(uint64_t job);

std::optional<ProcessEnvironment> detect_torchrun(
    const EnvReader& env,
    const StarterRow& row);
std::optional<ProcessEnvironment> detect_mpi(
    const EnvReader& env,
    const StarterRow& row);
std::optional<ProcessEnvironment> detect_slurm(
    const EnvReader& env,
    const StarterRow& row);

/// The first host of a Slurm node list such as `gpu[003-010,12],login1`.
/// Throws `ConfigError` naming `variable` where the list is malformed.
ACCELERATE_API std::string first_slurm_host(
    const std::string& node_list,
    const std::string& variable);

} // namespace accelerate
