// SPDX-License-Identifier: Apache-2.0
// What to start: from the options of a launch to one command per worker.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "config/launch_config.h"
#include "hardware/cores.h"
#include "hardware/gpus.h"
#include "launch/plan/placement.h"
#include "launch/supervise/output_router.h"
#include "launch/supervise/supervisor.h"

namespace accelerate {

/// This machine, as far as plans depend on it.
struct MachineFacts {
  /// Those that the workers may use.
  std::vector<Gpu> gpus = {};
  /// Of all of them; null where there are none.
  const GpuKind* gpu_kind = nullptr;
  /// Why there are none.
  std::string gpu_problem = {};
  /// Those with cores that the workers may use.
  std::vector<NumaNode> numa_nodes = {{0, {0}}};
  /// The Python to run scripts with.
  std::string python = "python3";
};

/// Looks this machine up. GPUs are asked for only where `config` wants to know.
ACCELERATE_API MachineFacts
read_machine_facts(const LaunchConfig& config, const EnvLookup& env);

/// What the one who starts a launcher settles beyond the options: somebody at
/// a terminal, another program, machine 0 over ssh.
struct LaunchStarter {
  /// Workers of this machine; unset: as the options say.
  std::optional<int> num_local = {};
  /// For the workers, where nothing else sets them.
  std::map<std::string, std::string> variables = {};
  bool is_coloured = false;
  bool is_input_shared = true;
  bool is_prompt = false;
  /// What `mpirun --version` printed, where mpirun starts the workers.
  std::optional<std::string> mpirun_version = {};
};

/// Everything that one launcher has to do, decided.
struct LaunchPlan {
  /// Without the variables that differ from worker to worker.
  ChildCommand command = {};
  int num_local = 1;
  /// The workers get ranks from here; not where mpirun gives them.
  bool is_ranked = true;
  /// By local rank; empty: anywhere.
  std::vector<std::vector<int>> cores = {};
  /// The NUMA node of the memory, by local rank; empty: any.
  std::vector<int> memory_nodes = {};
  /// "2 x NVIDIA H200" or "CPU".
  std::string devices = "CPU";
  Placement placement = {};
  /// Where rank 0 listens for the others, on one machine. Unset: any.
  std::optional<int> main_process_port = {};
  int max_restarts = 0;
  /// From the first signal to SIGKILL.
  std::chrono::seconds grace{30};
  bool is_contained = false;
  OutputOptions output = {};
  bool is_quiet = false;
  /// What all machines must have alike, by name.
  std::map<std::string, std::string> agreement = {};
};

/// Throws `ConfigError` where the options do not fit each other or the machine.
ACCELERATE_API LaunchPlan make_plan(
    const ResolvedConfig& config,
    const std::vector<std::string>& program,
    const Placement& placement,
    const MachineFacts& facts,
    const LaunchStarter& starter = {});

/// What only the job as a whole knows, the same on all machines but for
/// `first_rank`, `group_rank` and `master_address`.
struct StartOrder {
  int attempt = 0;
  int first_rank = 0;
  int world_size = 1;
  /// Of this machine among those that take part, without holes.
  int group_rank = 0;
  int group_world_size = 1;
  int max_restarts = 0;
  /// As this machine sees it: not part of the protocol.
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::string run_id = "none";

  bool operator==(const StartOrder&) const = default;
};

/// The workers of this machine, with torchrun's variables.
ACCELERATE_API std::vector<WorkerSpec> workers_of(
    const LaunchPlan& plan,
    const StartOrder& order);

/// The program with the variables of the one rank that the cluster's task is.
ACCELERATE_API ChildCommand command_in_place(const LaunchPlan& plan);

/// The command and the variables of each worker, as a shell would take them.
ACCELERATE_API std::string describe_workers(
    const std::vector<WorkerSpec>& workers);

/// The folder that relative paths start from. Throws `ConfigError` where it was
/// removed.
ACCELERATE_API std::filesystem::path working_folder();

/// One sentence where the plan's choice of ranks hides the output of all
/// processes of this machine; else empty.
ACCELERATE_API std::string note_on_hidden_output(const LaunchPlan& plan);

} // namespace accelerate
