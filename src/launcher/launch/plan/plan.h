// SPDX-License-Identifier: Apache-2.0
// Turns the options of a launch into one command per worker.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/config/launch_config.h"
#include "core/hardware/cores.h"
#include "core/hardware/gpus.h"
#include "launcher/launch/plan/placement.h"
#include "launcher/launch/supervise/output_router.h"
#include "launcher/launch/supervise/supervisor.h"

namespace accelerate {

/// Properties of this machine that plans depend on.
struct MachineFacts {
  /// The GPUs that workers may use.
  std::vector<Gpu> gpus = {};
  /// The kind of all GPUs. Null if there are none.
  const GpuKind* gpu_kind = nullptr;
  /// Why there are no GPUs.
  std::string gpu_problem = {};
  /// The NUMA nodes with cores that the workers may use.
  std::vector<NumaNode> numa_nodes = {{0, {0}}};
  /// The Python for scripts.
  std::string python = "python3";
};

/// The Python for scripts: next to this program, else the one that pip
/// installed this program for, else the first on PATH.
std::string find_python();

/// Inspects this machine. GPUs are only queried if `config` needs them.
MachineFacts read_machine_facts(
    const LaunchConfig& config,
    const EnvLookup& env);

/// Settings beyond the options that depend on who starts a launcher: a user at
/// a terminal, another program, or machine 0 over ssh.
struct LaunchStarter {
  /// The number of workers on this machine. If unset, the options determine it.
  std::optional<int> num_local = {};
  /// Defaults for the workers' environment.
  std::map<std::string, std::string> variables = {};
  bool is_coloured = false;
  bool is_input_shared = true;
  bool is_prompt = false;
  /// The output of `mpirun --version`, if mpirun starts the workers.
  std::optional<std::string> mpirun_version = {};
};

/// Everything that one launcher has to do.
struct LaunchPlan {
  /// The command, without the variables that differ between workers.
  ChildCommand command = {};
  /// The number of workers on this machine. `num_local_of` in `plan.cpp` lists
  /// the rules.
  int num_local = 1;
  /// Whether the launcher assigns ranks to workers. False if mpirun does.
  bool is_ranked = true;
  /// The cores of each worker, by local rank. Empty means any cores.
  std::vector<std::vector<int>> cores = {};
  /// The NUMA node of the memory, by local rank. Empty means any.
  std::vector<int> memory_nodes = {};
  /// "2 x NVIDIA H200" or "CPU".
  std::string devices = "CPU";
  Placement placement = {};
  /// The port of rank 0 on a single machine. If unset, any free port.
  std::optional<int> main_process_port = {};
  int max_restarts = 0;
  /// Seconds from the first signal to SIGKILL.
  std::chrono::seconds grace{30};
  bool is_contained = false;
  OutputOptions output = {};
  bool is_quiet = false;
  /// Settings that must be equal on all machines, by name.
  std::map<std::string, std::string> agreement = {};
};

/// Throws `ConfigError` if the options contradict each other or the machine.
ACCELERATE_INTERNAL LaunchPlan make_plan(
    const ResolvedConfig& config,
    const std::vector<std::string>& program,
    const Placement& placement,
    const MachineFacts& facts,
    const LaunchStarter& starter = {});

/// The start of one attempt. Equal on all machines except for `first_rank`,
/// `group_rank` and `master_address`.
struct StartOrder {
  int attempt = 0;
  int first_rank = 0;
  int world_size = 1;
  /// The index of this machine among those that take part, without gaps.
  int group_rank = 0;
  int group_world_size = 1;
  int max_restarts = 0;
  /// The address of rank 0 as seen by this machine. It is not part of the
  /// protocol.
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::string run_id = "none";

  bool operator==(const StartOrder&) const = default;
};

/// The workers of this machine, with torchrun's variables.
ACCELERATE_INTERNAL std::vector<WorkerSpec> workers_of(
    const LaunchPlan& plan,
    const StartOrder& order);

/// The program with the variables of its rank, if it runs as a task of the
/// cluster.
ChildCommand command_in_place(const LaunchPlan& plan);

/// The command and the variables of each worker, in shell syntax.
std::string describe_workers(const std::vector<WorkerSpec>& workers);

/// The folder that relative paths start from. Throws `ConfigError` if it was
/// removed.
std::filesystem::path working_folder();

/// A note if the plan's selection of ranks hides the output of all processes of
/// this machine. Otherwise, an empty string.
std::string note_on_hidden_output(const LaunchPlan& plan);

} // namespace accelerate
