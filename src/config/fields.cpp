// SPDX-License-Identifier: Apache-2.0
#include "config/fields.h"

#include <algorithm>

#include "base/str.h"
#include "hardware/gpu_kinds.h"

namespace accelerate {
namespace {

constexpr std::string_view kProgram = "Program";
constexpr std::string_view kHardware = "Hardware";
constexpr std::string_view kMachines = "Several machines";
constexpr std::string_view kJob = "Life of the job";
constexpr std::string_view kTraining = "Training";

constexpr int kMaxProcesses = 4096;
constexpr int kMaxMachines = 4096;
constexpr int kMaxPort = 65535;

std::string check_gpu_ids(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view id(text.data() + begin, end - begin);
    const bool is_index =
        !id.empty() && std::all_of(id.begin(), id.end(), is_digit);
    // The last two are how users and Slurm say "none" in the environment.
    if (!is_index && !id.starts_with("GPU-") && !id.starts_with("MIG-") &&
        id != "-1" && id != "NoDevFiles") {
      return "'all', or device indices or UUIDs joined by commas, as 0,1";
    }
    begin = end + 1;
  }
  return {};
}

std::string check_precision(const std::string& text) {
  return text == "fp8" ? "no, fp16 or bf16 (fp8 needs an engine that this "
                         "program does not have; bf16 is the nearest)"
                       : "";
}

std::string check_hosts(const std::string& text) {
  return text.empty() || text.starts_with(',') || text.ends_with(',') ||
                 text.find(",,") != std::string::npos ||
                 text.find_first_of(" \t") != std::string::npos
             ? "host names joined by commas, as node0,node1"
             : "";
}

std::vector<Field> program_fields() {
  return {
      {.name = "module",
       .member = &LaunchConfig::module,
       .group = kProgram,
       .help = "The program is a Python module, run as by `python -m`",
       .letter = 'm'},
      {.name = "no_python",
       .member = &LaunchConfig::no_python,
       .group = kProgram,
       .help = "Execute the program itself even where its name ends in .py"},
  };
}

std::vector<Field> hardware_fields() {
  return {
      {.name = "cpu",
       .member = &LaunchConfig::cpu,
       .group = kHardware,
       .help = "Train on the CPU even where there are GPUs",
       .yaml_key = "use_cpu",
       .is_shared_key = true,
       .variable = "ACCELERATE_USE_CPU",
       .question = "Train on the CPU only, even where there are GPUs?"},
      {.name = "multi_gpu",
       .member = &LaunchConfig::multi_gpu,
       .group = kHardware,
       .help = "Insist on GPUs: an error instead of the CPU where there are "
               "none (`distributed_type: MULTI_GPU` in the file)"},
      {.name = "mixed_precision",
       .member = &LaunchConfig::mixed_precision,
       .group = kHardware,
       .help = "Arithmetic of the forward pass",
       .choices = {"no", "fp16", "bf16"},
       .check = check_precision,
       .yaml_key = "mixed_precision",
       .is_shared_key = true,
       .variable = "ACCELERATE_MIXED_PRECISION",
       .question = "Which mixed precision?"},
      {.name = "num_processes",
       .member = &LaunchConfig::num_processes,
       .group = kHardware,
       .help = "Processes to start, over all machines; by default one per "
               "GPU, or one where there is none",
       .value_name = "N",
       .least = 1,
       .most = kMaxProcesses,
       .unset_word = "auto",
       .yaml_key = "num_processes",
       .is_shared_key = true,
       .variable = "ACCELERATE_NUM_PROCESSES",
       .question = "How many processes, over all machines?"},
      {.name = "gpu_ids",
       .member = &LaunchConfig::gpu_ids,
       .group = kHardware,
       .help = "GPUs of this machine to use: indices or UUIDs joined by "
               "commas, or all",
       .value_name = "IDS",
       .check = check_gpu_ids,
       .unset_word = "all",
       .yaml_key = "gpu_ids",
       .is_shared_key = true,
       .variable = gpu_kinds().front().visibility_variable,
       .question = "Which GPUs of this machine (as 0,1), or all?"},
      {.name = "num_cpu_threads_per_process",
       .member = &LaunchConfig::num_cpu_threads_per_process,
       .group = kHardware,
       .help = "CPU threads of each process; by default the cores of this "
               "machine are shared out",
       .value_name = "N",
       .least = 1,
       .unset_word = "auto",
       .yaml_key = "num_cpu_threads_per_process",
       .variable = "OMP_NUM_THREADS"},
      {.name = "enable_cpu_affinity",
       .member = &LaunchConfig::enable_cpu_affinity,
       .group = kHardware,
       .help = "Keep each process on the cores near its GPU (NUMA)",
       .yaml_key = "enable_cpu_affinity",
       .is_shared_key = true,
       .variable = "ACCELERATE_CPU_AFFINITY",
       .question = "Keep each process on the cores near its GPU (NUMA)?"},
  };
}

std::vector<Field> machine_fields() {
  return {
      {.name = "num_machines",
       .member = &LaunchConfig::num_machines,
       .group = kMachines,
       .help = "Machines of the run",
       .value_name = "N",
       .least = 1,
       .most = kMaxMachines,
       .yaml_key = "num_machines",
       .is_shared_key = true,
       .variable = "ACCELERATE_NUM_MACHINES",
       .question = "How many machines?"},
      {.name = "machine_rank",
       .member = &LaunchConfig::machine_rank,
       .group = kMachines,
       .help = "Number of this machine, from 0; machine 0 is where the others "
               "connect to",
       .value_name = "N",
       .most = kMaxMachines - 1,
       .yaml_key = "machine_rank",
       .is_shared_key = true,
       .variable = "ACCELERATE_MACHINE_RANK",
       .question =
           "Which of them is this one (0 is where the others connect)?"},
      {.name = "main_process_ip",
       .member = &LaunchConfig::main_process_ip,
       .group = kMachines,
       .help = "Address of machine 0",
       .value_name = "HOST",
       .yaml_key = "main_process_ip",
       .is_shared_key = true,
       .variable = "MASTER_ADDR",
       .question = "Address (name or IP) of machine 0?"},
      {.name = "main_process_port",
       .member = &LaunchConfig::main_process_port,
       .group = kMachines,
       .help = "TCP port of machine 0; by default 29500 with several machines, "
               "any free one with one",
       .value_name = "PORT",
       .most = kMaxPort,
       .unset_word = "auto",
       .yaml_key = "main_process_port",
       .is_shared_key = true,
       .variable = "MASTER_PORT",
       .question = "TCP port of machine 0?"},
      {.name = "hosts",
       .member = &LaunchConfig::hosts,
       .group = kMachines,
       .help = "Start the launchers of these machines over ssh, machine 0 "
               "first",
       .value_name = "A,B,C",
       .check = check_hosts,
       .yaml_key = "hosts",
       .variable = "ACCELERATE_HOSTS"},
      {.name = "hostfile",
       .member = &LaunchConfig::hostfile,
       .group = kMachines,
       .help = "As --hosts, one host per line of this file (`name slots=N`)",
       .value_name = "FILE",
       .yaml_key = "hostfile",
       .variable = "ACCELERATE_HOSTFILE"},
      {.name = "mpirun_hostfile",
       .member = &LaunchConfig::mpirun_hostfile,
       .group = kMachines,
       .help = "Start the processes with mpirun on the hosts of this file",
       .value_name = "FILE",
       .yaml_key = "mpirun_config.mpirun_hostfile",
       .is_shared_key = true,
       .variable = "ACCELERATE_MPIRUN_HOSTFILE",
       .question = "Host file for mpirun?"},
      {.name = "join_timeout",
       .member = &LaunchConfig::join_timeout,
       .group = kMachines,
       .help = "Seconds that the machines wait for each other at the start",
       .value_name = "SECONDS",
       .least = 1,
       .most = 86400,
       .yaml_key = "join_timeout",
       .variable = "ACCELERATE_JOIN_TIMEOUT"},
  };
}

std::vector<Field> job_fields() {
  return {
      {.name = "max_restarts",
       .member = &LaunchConfig::max_restarts,
       .group = kJob,
       .help = "How often all processes are started again after a failure",
       .value_name = "N",
       .most = 1000000,
       .yaml_key = "max_restarts",
       .variable = "ACCELERATE_MAX_RESTARTS"},
      {.name = "log_dir",
       .member = &LaunchConfig::log_dir,
       .group = kJob,
       .help = "Write the output of each process to files in this folder",
       .value_name = "DIR",
       .yaml_key = "log_dir",
       .variable = "ACCELERATE_LOG_DIR"},
      {.name = "tee",
       .member = &LaunchConfig::tee,
       .group = kJob,
       .help = "With --log_dir, what the terminal shows too: 0 nothing, 1 "
               "standard output, 2 standard error, 3 both",
       .value_name = "N",
       .most = 3,
       .letter = 't',
       .yaml_key = "tee",
       .variable = "ACCELERATE_TEE"},
      {.name = "quiet",
       .member = &LaunchConfig::quiet,
       .group = kJob,
       .help = "Say nothing about a failure beyond the exit code",
       .letter = 'q',
       .variable = "ACCELERATE_QUIET"},
      {.name = "debug",
       .member = &LaunchConfig::debug,
       .group = kJob,
       .help = "Check that all processes call each collective with values that "
               "fit together",
       .yaml_key = "debug",
       .is_shared_key = true,
       .variable = "ACCELERATE_DEBUG_MODE",
       .question = "Check distributed operations while running (slower)?"},
      {.name = "dry_run",
       .member = &LaunchConfig::dry_run,
       .group = kJob,
       .help = "Print the command and variables of each process, start "
               "nothing"},
  };
}

std::vector<Field> training_fields() {
  return {
      {.name = "gradient_accumulation_steps",
       .member = &LaunchConfig::gradient_accumulation_steps,
       .group = kTraining,
       .help = "Batches whose gradients are summed before each step; by "
               "default the program decides",
       .value_name = "N",
       .least = 1,
       .unset_word = "auto",
       .yaml_key = "gradient_accumulation_steps",
       .variable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
  };
}

std::vector<Field> all_fields() {
  std::vector<Field> all;
  for (const auto part :
       {program_fields,
        hardware_fields,
        machine_fields,
        job_fields,
        training_fields}) {
    for (Field& field : part()) {
      all.push_back(std::move(field));
    }
  }
  return all;
}

} // namespace

std::span<const Field> launch_fields() {
  static const std::vector<Field> fields = all_fields();
  return fields;
}

const Field* find_field(std::string_view name) {
  const auto fields = launch_fields();
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const Field& field) {
        return field.name == name;
      });
  return found == fields.end() ? nullptr : &*found;
}

} // namespace accelerate
