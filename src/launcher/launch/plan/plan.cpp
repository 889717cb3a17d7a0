// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/base/words.h"
#include "core/config/env_bridge.h"
#include "core/config/resolve.h"
#include "core/config/stream_choice.h"
#include "core/hardware/gpu_kinds.h"
#include "launcher/launch/plan/mpirun.h"
#include "launcher/launch/plan/shell_quote.h"
#include "launcher/launch/supervise/log_folder.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> command_of(
    const LaunchConfig& config,
    const std::vector<std::string>& program,
    const std::string& python) {
  std::vector<std::string> command = program;
  if (config.module) {
    command.insert(command.begin(), {python, "-u", "-m"});
  } else if (!config.no_python && program.at(0).ends_with(".py")) {
    command.insert(command.begin(), {python, "-u"});
  }
  return command;
}

void check_gpus(const ResolvedConfig& config, const MachineFacts& facts) {
  if (config.values.multi_gpu && facts.gpus.empty()) {
    throw ConfigError(str_cat(
        name_setting(config, "multi_gpu"),
        ", but this machine has no usable GPU: ",
        facts.gpu_problem,
        ". Pass --cpu to train on the CPU, or run `accelerate doctor` to find "
        "the cause"));
  }
}

/// The number of workers on this machine according to the options. All rules
/// for this number, highest precedence first:
///
/// 1. The tasks of a cluster that starts one task per rank (`make_plan`). An
///    --num_processes that differs is an error (`check_in_place`).
/// 2. The `slots` of the host (`LaunchStarter::num_local`, in `make_plan`).
/// 3. This machine's share of `num_processes`. The configuration file's number
///    counts as 1 if its distributed_type is NO, and -1 means unset
///    (`config_file.cpp`).
/// 4. This machine's share of the product of the parallelism sizes, which sets
///    an unset `num_processes` (`resolve_parallelism`).
/// 5. One per usable GPU, or one on the CPU (`default_num_local`).
///
/// mpirun places all processes itself and needs `num_processes`
/// (`under_mpirun`).
int num_local_of(
    const ResolvedConfig& resolved,
    int num_machines,
    const MachineFacts& facts) {
  const LaunchConfig& config = resolved.values;
  if (!config.num_processes) {
    return default_num_local(static_cast<int>(facts.gpus.size()));
  }
  if (*config.num_processes % num_machines != 0) {
    throw ConfigError(str_cat(
        name_setting(resolved, "num_processes"),
        " ",
        *config.num_processes,
        " cannot be divided evenly between ",
        num_machines,
        " machines. The number is the total for all machines, so use a "
        "multiple of ",
        num_machines));
  }
  const int num_local = *config.num_processes / num_machines;
  if (config.multi_gpu && num_local > static_cast<int>(facts.gpus.size())) {
    throw ConfigError(str_cat(
        "[launch] ",
        num_local,
        " processes were requested on this machine, but it has only ",
        facts.gpus.size(),
        facts.gpus.size() == 1 ? " usable GPU" : " usable GPUs",
        ". Lower --num_processes, or choose more GPUs with --gpu_ids"));
  }
  return num_local;
}

/// The NUMA node of each worker: that of its GPU. Without GPUs, workers are
/// distributed evenly.
std::vector<NumaNode> nodes_of(const MachineFacts& facts, int num_local) {
  const auto& nodes = facts.numa_nodes;
  std::vector<NumaNode> chosen;
  for (size_t rank = 0; rank < static_cast<size_t>(num_local); ++rank) {
    const auto near =
        std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& node) {
          return rank < facts.gpus.size() &&
                 facts.gpus[rank].numa_node == node.number;
        });
    chosen.push_back(
        near != nodes.end()
            ? *near
            : nodes[rank * nodes.size() / static_cast<size_t>(num_local)]);
  }
  return chosen;
}

OutputOptions output_of(
    const LaunchConfig& values,
    const LaunchStarter& starter,
    bool is_alone) {
  OutputOptions output;
  // Made absolute here, because workers and launchers may have other working
  // directories.
  output.log_dir = values.log_dir.empty() || values.log_dir.is_absolute()
                       ? values.log_dir
                       : working_folder() / values.log_dir;
  output.log_bytes = static_cast<int64_t>(values.log_max_mb) << 20;
  output.tee = parse_stream_choice(values.tee).value_or(StreamChoice{});
  for (const auto& rank : values.local_ranks_filter) {
    output.shown_local_ranks.insert(*parse_number<int>(rank));
  }
  output.is_timed = values.timestamps;
  output.is_inherited = is_alone && values.log_dir.empty() &&
                        !values.timestamps && values.local_ranks_filter.empty();
  output.is_coloured = starter.is_coloured;
  output.is_input_shared = starter.is_input_shared;
  output.is_prompt = starter.is_prompt;
  output.shows_all_errors = values.debug;
  return output;
}

std::map<std::string, std::string> agreement_of(
    const ResolvedConfig& config,
    const std::vector<std::string>& program,
    const Placement& placement) {
  const LaunchConfig& values = config.values;
  const std::string most = std::to_string(placement.num_machines);
  const auto& least = placement.least_machines;
  std::string command = fs::path(program.at(0)).filename();
  for (size_t i = 1; i < program.size(); ++i) {
    command += ' ' + program[i];
  }
  constexpr size_t kLongest = 2000;
  const auto& number = values.num_processes;
  return {
      {"num_machines", least ? str_cat(*least, ':', most) : most},
      {"num_processes", number ? std::to_string(*number) : "auto"},
      {"mixed_precision", values.mixed_precision},
      {"max_restarts", std::to_string(values.max_restarts)},
      {"cpu", values.cpu ? "yes" : "no"},
      {"debug", values.debug ? "yes" : "no"},
      {"program", printable(command.substr(0, kLongest))},
  };
}

std::string local_ranks(const LaunchPlan& plan) {
  return plan.num_local == 1 ? std::string("only local rank 0")
                             : str_cat("local ranks 0 to ", plan.num_local - 1);
}

} // namespace

fs::path working_folder() {
  std::error_code error;
  const auto folder = fs::current_path(error);
  if (error) {
    throw ConfigError(str_cat(
        "[launch] the current folder cannot be accessed (",
        error.message(),
        "). Change to another one, or use absolute paths"));
  }
  return folder;
}

std::string note_on_hidden_output(const LaunchPlan& plan) {
  const OutputOptions& output = plan.output;
  const auto is_here = [&](int rank) { return rank < plan.num_local; };
  const auto& shown = output.shown_local_ranks;
  if (!plan.is_ranked) {
    return {};
  }
  if (!shown.empty() && std::none_of(shown.begin(), shown.end(), is_here)) {
    return str_cat(
        "local_ranks_filter matches no process: this machine has ",
        local_ranks(plan));
  }
  const auto& tee = output.tee.by_local_rank;
  if (!output.log_dir.empty() && !tee.empty() &&
      std::none_of(tee.begin(), tee.end(), [&](const auto& entry) {
        return is_here(entry.first);
      })) {
    return str_cat(
        "tee matches no process: this machine has ", local_ranks(plan));
  }
  return {};
}

std::string find_python() {
  const auto folder = own_program().parent_path();
  for (const char* name : {"python3", "python"}) {
    if (!folder.empty() && access((folder / name).c_str(), X_OK) == 0) {
      return folder / name;
    }
  }
  const auto installing = interpreter_of(selftest_program());
  return installing.empty() ? "python3" : installing.string();
}

MachineFacts read_machine_facts(
    const LaunchConfig& config,
    const EnvLookup& env) {
  MachineFacts facts;
  facts.python = find_python();
  facts.numa_nodes = numa_nodes();
  if (config.cpu) {
    facts.gpu_problem = "--cpu or use_cpu is set";
    return facts;
  }
  auto usable = usable_gpus(gpu_kinds(), env, config.gpu_ids);
  facts.gpus = std::move(usable.gpus);
  facts.gpu_kind = usable.kind;
  facts.gpu_problem = std::move(usable.problem);
  return facts;
}

LaunchPlan make_plan(
    const ResolvedConfig& config,
    const std::vector<std::string>& program,
    const Placement& placement,
    const MachineFacts& facts,
    const LaunchStarter& starter) {
  const LaunchConfig& values = config.values;
  check_gpus(config, facts);
  LaunchPlan plan;
  plan.placement = placement;
  plan.command.command = command_of(values, program, facts.python);
  plan.command.variables = worker_variables(values);
  // The secrets of launchers, and the variables that describe an outer job.
  plan.command.removed = {
      variables::kJobToken,
      variables::kJobTokenFile,
      variables::kMainPid,
      variables::kRunReport,
      variables::kUseAgentStore};
  if (placement.is_in_place) {
    plan.num_local = placement.environment.topology.local_world_size;
  } else {
    // Call it in any case, because it validates the options.
    const int num_local = num_local_of(config, placement.num_machines, facts);
    plan.num_local = starter.num_local.value_or(num_local);
  }
  plan.devices = describe_gpus(facts.gpus);
  plan.max_restarts = values.max_restarts;
  plan.grace = std::chrono::seconds(values.grace_seconds);
  plan.is_contained = values.contain;
  plan.is_quiet = values.quiet;
  if (values.main_process_port.value_or(0) != 0) {
    plan.main_process_port = values.main_process_port;
  }
  size_t num_cores = 0;
  for (const auto& node : facts.numa_nodes) {
    num_cores += node.cores.size();
  }
  // A list of counts per nesting level, which OpenMP allows, is not overridden.
  plan.command.defaults[variables::kOmpNumThreads] = std::to_string(
      std::max<size_t>(1, num_cores / static_cast<size_t>(plan.num_local)));
  // The next step can reuse the memory that a step frees. By default, the
  // allocator returns it to the system after 10 ms, and it must be mapped again
  // page by page.
  plan.command.defaults[variables::kPurgeDelay] = "10000";
  plan.command.variables.insert(
      starter.variables.begin(), starter.variables.end());
  for (const auto& node : nodes_of(facts, plan.num_local)) {
    if (values.enable_cpu_affinity) {
      plan.cores.push_back(node.cores);
    }
    if (values.bind_memory) {
      plan.memory_nodes.push_back(node.number);
    }
  }
  if (starter.mpirun_version) {
    plan.command = under_mpirun(values, plan.command, *starter.mpirun_version);
    plan.num_local = 1;
    plan.is_ranked = false;
  }
  plan.output = output_of(
      values, starter, plan.num_local == 1 && placement.num_machines == 1);
  plan.agreement = agreement_of(config, program, placement);
  return plan;
}

std::vector<WorkerSpec> workers_of(
    const LaunchPlan& plan,
    const StartOrder& order) {
  if (!plan.is_ranked) {
    return {{0, plan.command}};
  }
  auto shared = plan.command;
  const auto set = [](ChildCommand& command, const char* name, auto value) {
    command.variables[name] = str_cat(value);
  };
  set(shared, variables::kWorldSize, order.world_size);
  set(shared, variables::kLocalWorldSize, plan.num_local);
  set(shared, variables::kGroupRank, order.group_rank);
  set(shared, variables::kGroupWorldSize, order.group_world_size);
  set(shared, variables::kRoleName, "default");
  set(shared, variables::kRoleWorldSize, order.world_size);
  set(shared, variables::kMasterAddress, order.master_address);
  set(shared, variables::kMasterPort, order.master_port);
  set(shared, variables::kRestartCount, order.attempt);
  set(shared, variables::kMostRestarts, order.max_restarts);
  set(shared, variables::kRunId, order.run_id);
  // The default of torchrun: a NCCL error ends the worker instead of hanging.
  shared.defaults[variables::kNcclAsyncErrors] = "1";
  // Python prints its stacks when it is stopped with SIGQUIT.
  shared.defaults[variables::kPythonFaultHandler] = "1";
  std::vector<WorkerSpec> workers;
  for (int local = 0; local < plan.num_local; ++local) {
    const int rank = order.first_rank + local;
    WorkerSpec worker{
        rank,
        shared,
        log_folder(plan.output.log_dir, order.run_id, order.attempt, rank)};
    set(worker.command, variables::kRank, rank);
    set(worker.command, variables::kLocalRank, local);
    set(worker.command, variables::kRoleRank, rank);
    // The launcher of the machine of rank 0 sets this once rank 0 has started.
    if (order.first_rank != 0) {
      set(worker.command, variables::kMainPid, 0);
    }
    if (!worker.log_folder.empty()) {
      set(worker.command,
          variables::kErrorFile,
          (worker.log_folder / "error.json").string());
    }
    if (!plan.cores.empty()) {
      worker.command.cores = plan.cores[static_cast<size_t>(local)];
    }
    if (!plan.memory_nodes.empty()) {
      worker.command.memory_nodes = {
          plan.memory_nodes[static_cast<size_t>(local)]};
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

ChildCommand command_in_place(const LaunchPlan& plan) {
  ChildCommand command = plan.command;
  // The rank is a task of an outer torchrun, whose store it uses.
  command.removed.erase(variables::kUseAgentStore);
  const auto& topology = plan.placement.environment.topology;
  const auto& rendezvous = plan.placement.environment.rendezvous;
  command.variables[variables::kRank] = std::to_string(topology.rank);
  command.variables[variables::kWorldSize] =
      std::to_string(topology.world_size);
  command.variables[variables::kLocalRank] =
      std::to_string(topology.local_rank);
  command.variables[variables::kLocalWorldSize] =
      std::to_string(topology.local_world_size);
  command.variables[variables::kGroupRank] = std::to_string(topology.node_rank);
  if (!rendezvous.address.empty()) {
    command.variables[variables::kMasterAddress] = rendezvous.address;
  }
  if (rendezvous.port != 0) {
    command.variables[variables::kMasterPort] = std::to_string(rendezvous.port);
  }
  if (!plan.cores.empty()) {
    command.cores = plan.cores.at(static_cast<size_t>(topology.local_rank));
  }
  if (!plan.memory_nodes.empty()) {
    command.memory_nodes = {
        plan.memory_nodes.at(static_cast<size_t>(topology.local_rank))};
  }
  return command;
}

std::string describe_workers(const std::vector<WorkerSpec>& workers) {
  std::string text;
  for (const auto& worker : workers) {
    text += str_cat("# rank ", worker.rank);
    if (!worker.command.cores.empty()) {
      text += " on cores";
      for (const int core : worker.command.cores) {
        text += str_cat(' ', core);
      }
    }
    text += '\n';
    for (const auto& [name, value] : added_variables(worker.command)) {
      text += name + '=' + shell_quoted(value) + " \\\n";
    }
    std::string line = "   ";
    for (const auto& word : worker.command.command) {
      line += ' ' + shell_quoted(word);
    }
    text += line + "\n";
  }
  return text;
}

} // namespace accelerate
