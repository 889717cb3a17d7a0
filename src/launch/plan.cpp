// SPDX-License-Identifier: Apache-2.0
#include "launch/plan.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "accelerate/error.h"
#include "base/str.h"
#include "config/env_bridge.h"
#include "hardware/cores.h"
#include "hardware/gpu_kinds.h"
#include "launch/shell_quote.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

std::string find_python() {
  std::error_code error;
  const auto folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* name : {"python3", "python"}) {
    if (!error && access((folder / name).c_str(), X_OK) == 0) {
      return folder / name;
    }
  }
  return "python3";
}

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

void check_gpus(const LaunchConfig& config, const MachineFacts& facts) {
  if (config.multi_gpu && facts.gpus.empty()) {
    throw ConfigError(str_cat(
        "[launch] --multi_gpu, but this machine has no usable GPU: ",
        facts.gpu_problem,
        "; `accelerate doctor` says more, --cpu trains on the CPU"));
  }
}

int num_local_of(
    const LaunchConfig& config,
    int num_machines,
    const MachineFacts& facts) {
  if (!config.num_processes) {
    return std::max(1, static_cast<int>(facts.gpus.size()));
  }
  if (*config.num_processes % num_machines != 0) {
    throw ConfigError(str_cat(
        "[launch] num_processes ",
        *config.num_processes,
        " cannot be shared out over ",
        num_machines,
        " machines; it counts the processes of all machines, use a multiple "
        "of ",
        num_machines));
  }
  const int num_local = *config.num_processes / num_machines;
  if (config.multi_gpu && num_local > static_cast<int>(facts.gpus.size())) {
    throw ConfigError(str_cat(
        "[launch] ",
        num_local,
        " processes on this machine but ",
        facts.gpus.size(),
        " usable GPUs; lower --num_processes or choose more with --gpu_ids"));
  }
  return num_local;
}

std::vector<std::vector<int>> cores_of(
    const MachineFacts& facts,
    int num_local) {
  std::vector<std::vector<int>> cores;
  const size_t count = facts.numa_nodes.size();
  for (size_t rank = 0; rank < static_cast<size_t>(num_local); ++rank) {
    size_t node = rank * count / static_cast<size_t>(num_local);
    if (rank < facts.gpus.size() && facts.gpus[rank].numa_node) {
      const auto near = static_cast<size_t>(*facts.gpus[rank].numa_node);
      node = near < count ? near : node;
    }
    cores.push_back(facts.numa_nodes[node]);
  }
  return cores;
}

std::map<std::string, std::string> agreement_of(
    const ResolvedConfig& config,
    const std::vector<std::string>& program,
    int num_machines) {
  const LaunchConfig& values = config.values;
  std::string command = fs::path(program.at(0)).filename();
  for (size_t i = 1; i < program.size(); ++i) {
    command += ' ' + program[i];
  }
  constexpr size_t kLongest = 2000;
  const auto& number = values.num_processes;
  return {
      {"num_machines", std::to_string(num_machines)},
      {"num_processes", number ? std::to_string(*number) : "auto"},
      {"mixed_precision", values.mixed_precision},
      {"max_restarts", std::to_string(values.max_restarts)},
      {"cpu", values.cpu ? "yes" : "no"},
      {"debug", values.debug ? "yes" : "no"},
      {"program", command.substr(0, kLongest)},
  };
}

} // namespace

MachineFacts read_machine_facts(
    const LaunchConfig& config,
    const EnvLookup& env) {
  MachineFacts facts;
  facts.python = find_python();
  facts.numa_nodes = numa_nodes();
  std::erase_if(
      facts.numa_nodes, [](const auto& node) { return node.empty(); });
  if (config.cpu) {
    facts.gpu_problem = "--cpu was given";
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
    const MachineFacts& facts) {
  const LaunchConfig& values = config.values;
  check_gpus(values, facts);
  LaunchPlan plan;
  plan.placement = placement;
  plan.command.command = command_of(values, program, facts.python);
  plan.command.variables = worker_variables(values);
  // Secrets of the launchers, and what an outer torchrun said of its own store.
  plan.command.removed = {
      "ACCELERATE_JOB_TOKEN",
      "ACCELERATE_JOB_TOKEN_FILE",
      "TORCHELASTIC_USE_AGENT_STORE"};
  plan.num_local = placement.is_in_place
                       ? placement.environment.topology.local_world_size
                       : num_local_of(values, placement.num_machines, facts);
  plan.devices = describe_gpus(facts.gpus);
  plan.max_restarts = values.max_restarts;
  plan.is_quiet = values.quiet;
  if (values.main_process_port.value_or(0) != 0) {
    plan.main_process_port = values.main_process_port;
  }
  size_t num_cores = 0;
  for (const auto& node : facts.numa_nodes) {
    num_cores += node.size();
  }
  plan.command.variables.try_emplace(
      "OMP_NUM_THREADS",
      std::to_string(std::max<size_t>(
          1, num_cores / static_cast<size_t>(plan.num_local))));
  if (values.enable_cpu_affinity) {
    plan.cores = cores_of(facts, plan.num_local);
  }
  plan.output.log_dir = values.log_dir;
  plan.output.tee = values.tee;
  plan.output.is_inherited = values.log_dir.empty() && plan.num_local == 1 &&
                             placement.num_machines == 1;
  plan.agreement = agreement_of(config, program, placement.num_machines);
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
  const int machines = plan.placement.num_machines;
  set(shared, "WORLD_SIZE", order.world_size);
  set(shared, "LOCAL_WORLD_SIZE", plan.num_local);
  set(shared, "GROUP_RANK", plan.placement.machine_rank);
  set(shared, "GROUP_WORLD_SIZE", machines);
  set(shared, "ROLE_NAME", "default");
  set(shared, "ROLE_WORLD_SIZE", order.world_size);
  set(shared, "MASTER_ADDR", order.master_address);
  set(shared, "MASTER_PORT", order.master_port);
  set(shared, "TORCHELASTIC_RESTART_COUNT", order.attempt);
  set(shared, "TORCHELASTIC_MAX_RESTARTS", order.max_restarts);
  set(shared, "TORCHELASTIC_RUN_ID", order.run_id);
  // torchrun's own default: a NCCL error ends the worker instead of hanging.
  shared.variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  std::vector<WorkerSpec> workers;
  for (int local = 0; local < plan.num_local; ++local) {
    const int rank = order.first_rank + local;
    WorkerSpec worker{rank, shared};
    set(worker.command, "RANK", rank);
    set(worker.command, "LOCAL_RANK", local);
    set(worker.command, "ROLE_RANK", rank);
    if (!plan.cores.empty()) {
      worker.command.cores = plan.cores[static_cast<size_t>(local)];
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

ChildCommand command_in_place(const LaunchPlan& plan) {
  ChildCommand command = plan.command;
  // Here the outer torchrun is the one that the rank belongs to.
  command.removed.erase("TORCHELASTIC_USE_AGENT_STORE");
  const auto& [topology, meeting_point, source] = plan.placement.environment;
  command.variables["RANK"] = std::to_string(topology.rank);
  command.variables["WORLD_SIZE"] = std::to_string(topology.world_size);
  command.variables["LOCAL_RANK"] = std::to_string(topology.local_rank);
  command.variables["LOCAL_WORLD_SIZE"] =
      std::to_string(topology.local_world_size);
  command.variables["GROUP_RANK"] = std::to_string(topology.node_rank);
  if (!meeting_point.address.empty()) {
    command.variables["MASTER_ADDR"] = meeting_point.address;
  }
  if (meeting_point.port != 0) {
    command.variables["MASTER_PORT"] = std::to_string(meeting_point.port);
  }
  if (!plan.cores.empty()) {
    command.cores = plan.cores.at(static_cast<size_t>(topology.local_rank));
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
    for (const auto& [name, value] : worker.command.variables) {
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
