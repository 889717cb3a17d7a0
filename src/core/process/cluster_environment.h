// SPDX-License-Identifier: Apache-2.0
// Recognises the starters of processes by their environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/process.h"
#include "core/base/internal.h"

namespace accelerate {

/// Reads variables, and rejects invalid ones with a message that names them.
class ACCELERATE_INTERNAL EnvReader {
 public:
  explicit EnvReader(const EnvLookup& env) : env_(env) {}

  /// The value. Empty if the variable is unset or empty.
  std::optional<std::string> text(const std::string& name) const;
  /// A number of at least `least`. Empty if unset.
  std::optional<int> number(const std::string& name, int least = 0) const;
  /// Like `number`, but throws if the variable is unset, because another one
  /// (`because`) is set.
  int required(const std::string& name, const std::string& because, int least)
      const;

 private:
  const EnvLookup& env_;
};

/// The variables in which one starter publishes ranks and sizes.
struct RankVariables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  /// May be null if the starter does not provide it as a plain number.
  const char* local_world_size;
};

/// One row of the table of starters in `detect.cpp`.
struct StarterRow {
  Starter starter;
  RankVariables names;
  /// Reads the settings of the starter. Empty if it did not start the process.
  std::optional<ProcessEnvironment> (
      *detect)(const EnvReader& env, const StarterRow& row);
};

/// Reads the row's variables. Empty if the rank variable is unset. Without a
/// local rank, assumes one process per machine. Without a local size, assumes
/// the minimum that the local rank implies. Checks that every rank is below its
/// size.
std::optional<ProcessEnvironment> read_ranks(
    const EnvReader& env,
    const StarterRow& row);

/// MASTER_ADDR and MASTER_PORT if set, else `fallback`.
Rendezvous read_rendezvous(const EnvReader& env, const Rendezvous& fallback);

/// A port for a job whose starter passes none: the same on all ranks, different
/// for most jobs, outside of the ephemeral range.
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

/// The first host of a Slurm node list such as `gpu[003-010,12],login1`. Throws
/// a `ConfigError` that names `variable` if the list is malformed.
ACCELERATE_INTERNAL std::string first_slurm_host(
    const std::string& node_list,
    const std::string& variable);

} // namespace accelerate
