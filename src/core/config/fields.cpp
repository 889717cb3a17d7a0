// SPDX-License-Identifier: Apache-2.0
#include "core/config/fields.h"

#include <algorithm>
#include <cctype>

#include "accelerate/training/precision_name.h"
#include "core/base/host_name.h"
#include "core/base/parse.h"
#include "core/base/plain_text.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/config/stream_choice.h"
#include "core/hardware/gpu_kinds.h"

namespace accelerate {
namespace {

constexpr std::string_view kProgram = "Program";
constexpr std::string_view kHardware = "Hardware";
constexpr std::string_view kMachines = "Several machines";
constexpr std::string_view kJob = "Job control";
constexpr std::string_view kTraining = "Training";
constexpr std::string_view kParallelism = "Parallelism";
constexpr std::string_view kSharding = "Sharding (FSDP)";
constexpr std::string_view kDeepSpeed = "Sharding (DeepSpeed)";
constexpr std::string_view kCompilation = "Compilation (torch.compile)";

constexpr int kMaxProcesses = 4096;
constexpr int kMaxMachines = 4096;
constexpr int kMaxPort = 65535;
constexpr int kMaxThreads = 65536;

std::string check_gpu_ids(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view id(text.data() + begin, end - begin);
    const bool is_index =
        !id.empty() && std::all_of(id.begin(), id.end(), is_digit);
    // The last alternatives are the spellings of "none" by users, containers
    // and Slurm.
    if (!is_index && !id.starts_with("GPU-") && !id.starts_with("MIG-") &&
        id != "-1" && id != "none" && id != "void" && id != "NoDevFiles") {
      return "'all', or GPU indices or UUIDs separated by commas, e.g. 0,1";
    }
    begin = end + 1;
  }
  return {};
}

std::vector<std::string_view> precision_choices() {
  std::vector<std::string_view> choices;
  for (const PrecisionName& row : precision_names()) {
    choices.push_back(row.name);
  }
  return choices;
}

std::string check_hosts(const std::string& text) {
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (!is_ssh_target(text.substr(begin, end - begin))) {
      return "host names separated by commas, e.g. node0,node1";
    }
    begin = end + 1;
  }
  return {};
}

std::string check_address(const std::string& text) {
  return text.empty() || is_host_name(without_brackets(text))
             ? ""
             : "a host name or an IP address";
}

std::string check_variables(const std::string& text) {
  const auto is_word_char = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ||
           c == ',';
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), is_word_char)
             ? ""
             : "environment variable names separated by commas, e.g. A,B";
}

std::string check_tee(const std::string& text) {
  return parse_stream_choice(text) ? ""
                                   : "0, 1, 2 or 3, or one of these values per "
                                     "local rank, e.g. 0:3,1:2";
}

std::string check_ranks(const std::string& text) {
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto rank = parse_number<int>(text.substr(begin, end - begin));
    if (!rank || *rank < 0 || *rank >= kMaxProcesses) {
      return str_cat(
          "local ranks from 0 to ",
          kMaxProcesses - 1,
          " separated by commas, e.g. 0,1");
    }
    begin = end + 1;
  }
  return {};
}

std::string check_switch(const std::string& text) {
  return parse_bool(text) ? "" : "true or false";
}

std::string check_clipping(const std::string& text) {
  const auto limit = parse_number<double>(text);
  return limit && *limit >= 0 ? "" : "a number of at least 0";
}

constexpr std::string_view kStrategies[] = {
    "FULL_SHARD",
    "SHARD_GRAD_OP",
    "NO_SHARD",
    "HYBRID_SHARD",
    "HYBRID_SHARD_ZERO2"};

// Accepts the name of a strategy, or its number as in older files.
std::string check_strategy(const std::string& text) {
  const auto number = parse_number<size_t>(text);
  const bool is_known =
      (number && *number >= 1 && *number <= std::size(kStrategies)) ||
      std::find(std::begin(kStrategies), std::end(kStrategies), text) !=
          std::end(kStrategies);
  return is_known ? "" : "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD";
}

std::string check_reshard(const std::string& text) {
  return check_switch(text).empty() || check_strategy(text).empty()
             ? ""
             : "true or false (with FSDP 1 also FULL_SHARD or SHARD_GRAD_OP)";
}

constexpr std::string_view kCompilers[] = {
    "no",
    "eager",
    "aot_eager",
    "inductor",
    "aot_ts_nvfuser",
    "nvprims_nvfuser",
    "cudagraphs",
    "ofi",
    "fx2trt",
    "onnxrt",
    "tensorrt",
    "aot_torchxla_trace_once",
    "torchxla_trace_once",
    "tvm",
    "hpu_backend",
    "neuron"};

// The original writes compilers in lower case in flags, in upper case in files.
std::string check_compiler(const std::string& text) {
  const bool is_known =
      std::find(
          std::begin(kCompilers), std::end(kCompilers), lower_case(text)) !=
      std::end(kCompilers);
  return is_known ? ""
                  : "no, inductor, eager, aot_eager, cudagraphs or another "
                    "backend of torch.compile";
}

std::string_view port_help() {
  static const std::string text = str_cat(
      "TCP port of machine 0 (default: ",
      kDefaultMainProcessPort,
      " with several machines, any free port with one)");
  return text;
}

std::vector<Field> program_fields() {
  return {
      {.name = "module",
       .member = &LaunchConfig::module,
       .group = kProgram,
       .help = "Run the program as a Python module (`python -m`)",
       .letter = 'm'},
      {.name = "no_python",
       .member = &LaunchConfig::no_python,
       .group = kProgram,
       .help = "Execute the program directly, even if its name ends in .py"},
  };
}

std::vector<Field> hardware_fields() {
  return {
      {.name = "cpu",
       .member = &LaunchConfig::cpu,
       .group = kHardware,
       .help = "Train on the CPU even if there are GPUs",
       .yaml_key = "use_cpu",
       .is_shared_key = true,
       .variable = variables::kUseCpu,
       .workers = WorkerRule::kAlways,
       .question = "Train on the CPU only, even if there are GPUs?"},
      {.name = "multi_gpu",
       .member = &LaunchConfig::multi_gpu,
       .group = kHardware,
       .help = "Require GPUs: fail instead of training on the CPU "
               "(`distributed_type: MULTI_GPU` in the file)"},
      {.name = "mixed_precision",
       .member = &LaunchConfig::mixed_precision,
       .group = kHardware,
       .help = "Precision of the forward pass",
       .choices = precision_choices(),
       .yaml_key = "mixed_precision",
       .is_shared_key = true,
       .variable = variables::kMixedPrecision,
       .workers = WorkerRule::kAlways,
       .question = "Which mixed precision?"},
      {.name = "num_processes",
       .member = &LaunchConfig::num_processes,
       .group = kHardware,
       .help = "Total number of processes on all machines (default: one per "
               "GPU, or one on the CPU). With --num_machines MIN:MAX, the "
               "total for MAX machines",
       .value_name = "N",
       .least = 1,
       .most = kMaxProcesses,
       .unset_word = "auto",
       .yaml_key = "num_processes",
       .is_shared_key = true,
       .variable = variables::kNumProcesses,
       .question = "How many processes in total?"},
      {.name = "gpu_ids",
       .member = &LaunchConfig::gpu_ids,
       .group = kHardware,
       .help = "GPUs to use on this machine: indices or UUIDs separated by "
               "commas, or all",
       .value_name = "IDS",
       .check = check_gpu_ids,
       .unset_word = "all",
       .yaml_key = "gpu_ids",
       .is_shared_key = true,
       .variable = gpu_kinds().front().visibility_variable,
       .question = "Which GPUs on this machine (e.g. 0,1), or all?"},
      {.name = "num_cpu_threads_per_process",
       .member = &LaunchConfig::num_cpu_threads_per_process,
       .group = kHardware,
       .help = "CPU threads per process (default: the number of cores on this "
               "machine divided by the number of processes on it)",
       .value_name = "N",
       .least = 1,
       .most = kMaxThreads,
       .unset_word = "auto",
       .yaml_key = "num_cpu_threads_per_process",
       .variable = variables::kOmpNumThreads,
       .workers = WorkerRule::kWhereDecided},
      {.name = "enable_cpu_affinity",
       .member = &LaunchConfig::enable_cpu_affinity,
       .group = kHardware,
       .help = "Pin each process to the CPU cores near its GPU (NUMA)",
       .yaml_key = "enable_cpu_affinity",
       .is_shared_key = true,
       .variable = variables::kCpuAffinity,
       .workers = WorkerRule::kWhereDecided,
       .question = "Pin each process to the CPU cores near its GPU (NUMA)?"},
      {.name = "bind_memory",
       .member = &LaunchConfig::bind_memory,
       .group = kHardware,
       .help = "Allocate each process's memory only on the NUMA node near "
               "its GPU",
       .yaml_key = "bind_memory",
       .variable = variables::kBindMemory},
  };
}

std::vector<Field> machine_fields() {
  return {
      {.name = "num_machines",
       .member = &LaunchConfig::num_machines,
       .group = kMachines,
       .help = "Number of machines. MIN:MAX makes the job elastic: it "
               "continues with fewer machines and accepts new ones",
       .value_name = "N",
       .least = 1,
       .most = kMaxMachines,
       .yaml_key = "num_machines",
       .is_shared_key = true,
       .variable = variables::kNumMachines,
       .question = "How many machines?"},
      {.name = "machine_rank",
       .member = &LaunchConfig::machine_rank,
       .group = kMachines,
       .help = "Rank of this machine, from 0; the other machines connect to "
               "machine 0. Not needed with --num_machines MIN:MAX",
       .value_name = "N",
       .most = kMaxMachines - 1,
       .yaml_key = "machine_rank",
       .is_shared_key = true,
       .variable = variables::kMachineRank,
       .question =
           "Rank of this machine (the other machines connect to machine 0)?"},
      {.name = "main_process_ip",
       .member = &LaunchConfig::main_process_ip,
       .group = kMachines,
       .help = "Host name or IP address of machine 0",
       .value_name = "HOST",
       .check = check_address,
       .yaml_key = "main_process_ip",
       .is_shared_key = true,
       .variable = variables::kMasterAddress,
       .question = "Host name or IP address of machine 0?"},
      {.name = "main_process_port",
       .member = &LaunchConfig::main_process_port,
       .group = kMachines,
       .help = port_help(),
       .value_name = "PORT",
       .most = kMaxPort,
       .unset_word = "auto",
       .yaml_key = "main_process_port",
       .is_shared_key = true,
       .variable = variables::kMasterPort,
       .question = "TCP port of machine 0?"},
      {.name = "hosts",
       .member = &LaunchConfig::hosts,
       .group = kMachines,
       .help = "Start the job on these hosts over ssh; list machine 0 first",
       .value_name = "HOSTS",
       .check = check_hosts,
       .yaml_key = "hosts",
       .variable = variables::kHosts},
      {.name = "hostfile",
       .member = &LaunchConfig::hostfile,
       .group = kMachines,
       .help = "Like --hosts, but read the hosts from a file with one host "
               "per line (`name slots=N`)",
       .value_name = "FILE",
       .yaml_key = "hostfile",
       .variable = variables::kHostfile},
      {.name = "mpirun_hostfile",
       .member = &LaunchConfig::mpirun_hostfile,
       .group = kMachines,
       .help = "Start the processes with mpirun on the hosts in this file",
       .value_name = "FILE",
       .yaml_key = "mpirun_config.mpirun_hostfile",
       .is_shared_key = true,
       .variable = variables::kMpirunHostfile,
       .question = "Host file for mpirun?"},
      {.name = "join_timeout",
       .member = &LaunchConfig::join_timeout,
       .group = kMachines,
       .help = "How long machines wait for each other at the start, and after "
               "one is lost",
       .value_name = "SECONDS",
       .least = 1,
       .most = 86400,
       .yaml_key = "join_timeout",
       .variable = variables::kJoinTimeout},
      {.name = "heartbeat_seconds",
       .member = &LaunchConfig::heartbeat_seconds,
       .group = kMachines,
       .help = "Treat a machine as lost after this many seconds of silence (a "
               "warning appears after 5)",
       .value_name = "SECONDS",
       .least = 1,
       .most = 86400,
       .yaml_key = "heartbeat_seconds",
       .variable = variables::kHeartbeatSeconds},
      {.name = "export",
       .member = &LaunchConfig::exported,
       .group = kMachines,
       .help =
           "Environment variables to pass to workers on other hosts "
           "(with --hosts, --hostfile or --mpirun_hostfile); may be repeated",
       .value_name = "NAMES",
       .check = check_variables,
       .adds_up = true,
       .yaml_key = "export",
       .variable = variables::kExport},
      {.name = "check",
       .member = &LaunchConfig::check,
       .group = kMachines,
       .help = "Check every machine first, as `accelerate doctor` does, and "
               "start nothing if one of them cannot run the job",
       .yaml_key = "check",
       .variable = variables::kCheck},
  };
}

std::vector<Field> job_fields() {
  return {
      {.name = "max_restarts",
       .member = &LaunchConfig::max_restarts,
       .group = kJob,
       .help = "How many times to restart all processes after a failure",
       .value_name = "N",
       .most = 1000000,
       .yaml_key = "max_restarts",
       .variable = variables::kMaxRestarts},
      {.name = "grace_seconds",
       .member = &LaunchConfig::grace_seconds,
       .group = kJob,
       .help = "How long processes may take to exit before they are killed",
       .value_name = "SECONDS",
       .most = 86400,
       .yaml_key = "grace_seconds",
       .variable = variables::kGraceSeconds},
      {.name = "contain",
       .member = &LaunchConfig::contain,
       .group = kJob,
       .help = "Run the job in a PID namespace, so that no process outlives "
               "the launcher",
       .yaml_key = "contain",
       .variable = variables::kContain},
      {.name = "watch",
       .member = &LaunchConfig::watch,
       .group = kJob,
       .help =
           "Show the run on a web page while it runs (see `accelerate watch`)"},
      {.name = "log_dir",
       .member = &LaunchConfig::log_dir,
       .group = kJob,
       .help = "Write the output of each process to files in this folder, in "
               "one subfolder per run",
       .value_name = "FOLDER",
       .yaml_key = "log_dir",
       .variable = variables::kLogDir},
      {.name = "log_max_mb",
       .member = &LaunchConfig::log_max_mb,
       .group = kJob,
       .help = "Rotate log files at N MiB and keep the last five (0: never)",
       .value_name = "N",
       .most = 1048576,
       .yaml_key = "log_max_mb",
       .variable = variables::kLogMaxMb},
      {.name = "tee",
       .member = &LaunchConfig::tee,
       .group = kJob,
       .help = "Output that the terminal also shows with --log_dir: 0 nothing, "
               "1 stdout, 2 stderr, 3 both; or per local rank, e.g. 0:3,1:2",
       .value_name = "N",
       .check = check_tee,
       .letter = 't',
       .yaml_key = "tee",
       .variable = variables::kTee},
      {.name = "local_ranks_filter",
       .member = &LaunchConfig::local_ranks_filter,
       .group = kJob,
       .help = "Show only the output of these local ranks, e.g. 0,1; log files "
               "contain the output of all ranks",
       .value_name = "RANKS",
       .check = check_ranks,
       .unset_word = "all",
       .yaml_key = "local_ranks_filter",
       .variable = variables::kLocalRanksFilter},
      {.name = "timestamps",
       .member = &LaunchConfig::timestamps,
       .group = kJob,
       .help = "Start every line of output with the time (UTC), including in "
               "log files",
       .yaml_key = "timestamps",
       .variable = variables::kTimestamps},
      {.name = "quiet",
       .member = &LaunchConfig::quiet,
       .group = kJob,
       .help = "After a failure, print nothing and only return the exit code",
       .letter = 'q',
       .variable = variables::kQuiet},
      {.name = "debug",
       .member = &LaunchConfig::debug,
       .group = kJob,
       .help = "Compare the arguments of every collective across ranks "
               "(slower), and turn warnings of the Python package into errors",
       .yaml_key = "debug",
       .is_shared_key = true,
       .variable = variables::kDebugMode,
       .workers = WorkerRule::kWhereDecided,
       .question = "Check collectives across ranks while training (slower)?"},
      {.name = "dry_run",
       .member = &LaunchConfig::dry_run,
       .group = kJob,
       .help = "Print the command and variables of each process without "
               "starting anything"},
  };
}

std::vector<Field> training_fields() {
  return {
      {.name = "gradient_accumulation_steps",
       .member = &LaunchConfig::gradient_accumulation_steps,
       .group = kTraining,
       .help = "Micro-batches per optimizer step (default: the program "
               "decides)",
       .value_name = "N",
       .least = 1,
       .unset_word = "auto",
       .yaml_key = "gradient_accumulation_steps",
       .variable = variables::kGradientAccumulationSteps,
       .workers = WorkerRule::kWhereDecided,
       .question = "How many micro-batches per optimizer step?"},
      {.name = "fast",
       .member = &LaunchConfig::fast,
       .group = kTraining,
       .help = "Replay forward and backward passes as device graphs (Python "
               "programs on GPUs)",
       .yaml_key = "fast",
       .variable = variables::kFast,
       .workers = WorkerRule::kWhereDecided},
  };
}

/// These fields are read by `ParallelismConfig` of the Python package and by
/// `RunSettings::parallelism`.
std::vector<Field> parallelism_fields() {
  return {
      {.name = "use_parallelism_config",
       .member = &LaunchConfig::use_parallelism_config,
       .group = kParallelism,
       .help = "Use the sizes below (a size in the program takes precedence)",
       .variable = variables::kUseParallelismConfig,
       .workers = WorkerRule::kWhereDecided},
      {.name = "parallelism_config_dp_replicate_size",
       .member = &LaunchConfig::parallelism_config_dp_replicate_size,
       .group = kParallelism,
       .help = "Number of copies of the model",
       .value_name = "N",
       .least = 1,
       .most = kMaxProcesses,
       .unset_word = "auto",
       .yaml_key = "parallelism_config.parallelism_config_dp_replicate_size",
       .is_shared_key = true,
       .variable = variables::kParallelismReplicate,
       .workers = WorkerRule::kWhereDecided},
      {.name = "parallelism_config_dp_shard_size",
       .member = &LaunchConfig::parallelism_config_dp_shard_size,
       .group = kParallelism,
       .help = "Number of processes that each copy of the model is sharded "
               "across; needs a program that shards, or --use_fsdp",
       .value_name = "N",
       .least = 1,
       .most = kMaxProcesses,
       .unset_word = "auto",
       .yaml_key = "parallelism_config.parallelism_config_dp_shard_size",
       .is_shared_key = true,
       .variable = variables::kParallelismShard,
       .workers = WorkerRule::kWhereDecided},
      {.name = "parallelism_config_tp_size",
       .member = &LaunchConfig::parallelism_config_tp_size,
       .group = kParallelism,
       .help = "Number of processes that each layer of the model is split "
               "across (tensor parallelism), on one machine; C++ programs only",
       .value_name = "N",
       .least = 1,
       .most = kMaxProcesses,
       .unset_word = "auto",
       .yaml_key = "parallelism_config.parallelism_config_tp_size",
       .is_shared_key = true,
       .variable = variables::kParallelismTensor,
       .workers = WorkerRule::kWhereDecided},
  };
}

/// These fields are read by `FullyShardedDataParallelPlugin` of the Python
/// package. Files have a separate section for them.
std::vector<Field> sharding_fields() {
  return {
      {.name = "use_fsdp",
       .member = &LaunchConfig::use_fsdp,
       .group = kSharding,
       .help = "Shard the models of a Python program across its processes with "
               "FSDP (docs/guide_sharding.md; `distributed_type: FSDP` in the "
               "file)",
       .variable = variables::kUseFsdp,
       .workers = WorkerRule::kWhereDecided,
       .question = "Shard the model across the processes with FSDP?"},
      {.name = "fsdp_version",
       .member = &LaunchConfig::fsdp_version,
       .group = kSharding,
       .help = "FSDP version: 1 (FullyShardedDataParallel) or 2 (fully_shard)",
       .value_name = "N",
       .least = 1,
       .most = 2,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_version",
       .is_shared_key = true,
       .variable = variables::kFsdpVersion,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_sharding_strategy",
       .member = &LaunchConfig::fsdp_sharding_strategy,
       .group = kSharding,
       .help = "FSDP 1: what to shard (FULL_SHARD, SHARD_GRAD_OP, NO_SHARD "
               "or HYBRID_SHARD)",
       .value_name = "NAME",
       .check = check_strategy,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_sharding_strategy",
       .is_shared_key = true,
       .variable = variables::kFsdpShardingStrategy,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_reshard_after_forward",
       .member = &LaunchConfig::fsdp_reshard_after_forward,
       .group = kSharding,
       .help = "FSDP 2: shard parameters in addition to gradients and "
               "optimizer state",
       .value_name = "true|false",
       .check = check_reshard,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_reshard_after_forward",
       .is_shared_key = true,
       .variable = variables::kFsdpReshardAfterForward,
       .workers = WorkerRule::kWhereDecided,
       .question = "Also shard parameters (less memory, more communication)?"},
      {.name = "fsdp_auto_wrap_policy",
       .member = &LaunchConfig::fsdp_auto_wrap_policy,
       .group = kSharding,
       .help = "Which modules are sharded as one unit (default: each block "
               "of a ModuleList)",
       .choices = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"},
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_auto_wrap_policy",
       .is_shared_key = true,
       .variable = variables::kFsdpAutoWrapPolicy,
       .workers = WorkerRule::kWhereDecided,
       .question = "Which modules are sharded as one unit?"},
      {.name = "fsdp_transformer_layer_cls_to_wrap",
       .member = &LaunchConfig::fsdp_transformer_layer_cls_to_wrap,
       .group = kSharding,
       .help = "With TRANSFORMER_BASED_WRAP: class names of the modules to "
               "wrap (default: the model's own list)",
       .value_name = "NAMES",
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
       .is_shared_key = true,
       .variable = variables::kFsdpTransformerClasses,
       .workers = WorkerRule::kWhereDecided,
       .question = "Class names of the layers to wrap (e.g. BertLayer), or "
                   "auto for the model's own list?"},
      {.name = "fsdp_min_num_params",
       .member = &LaunchConfig::fsdp_min_num_params,
       .group = kSharding,
       .help = "With SIZE_BASED_WRAP: wrap modules with at least N parameters",
       .value_name = "N",
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_min_num_params",
       .is_shared_key = true,
       .variable = variables::kFsdpMinNumParams,
       .workers = WorkerRule::kWhereDecided,
       .question = "Minimum number of parameters per wrapped module?"},
      {.name = "fsdp_state_dict_type",
       .member = &LaunchConfig::fsdp_state_dict_type,
       .group = kSharding,
       .help = "Format of saved state dicts",
       .choices = {"FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"},
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_state_dict_type",
       .is_shared_key = true,
       .variable = variables::kFsdpStateDictType,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_cpu_ram_efficient_loading",
       .member = &LaunchConfig::fsdp_cpu_ram_efficient_loading,
       .group = kSharding,
       .help = "Read the weights of transformers models on one process only",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_cpu_ram_efficient_loading",
       .is_shared_key = true,
       .variable = variables::kFsdpRamEfficientLoading,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_activation_checkpointing",
       .member = &LaunchConfig::fsdp_activation_checkpointing,
       .group = kSharding,
       .help = "Recompute the activations of wrapped modules in the backward "
               "pass (saves memory, but is slower)",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_activation_checkpointing",
       .is_shared_key = true,
       .variable = variables::kFsdpActivationCheckpointing,
       .workers = WorkerRule::kWhereDecided,
       .question = "Recompute activations in the backward pass (less memory, "
                   "slower)?"},
      {.name = "fsdp_activation_checkpointing_offload",
       .member = &LaunchConfig::fsdp_activation_checkpointing_offload,
       .group = kSharding,
       .has_effect = false,
       .help = "Not supported",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_activation_checkpointing_offload",
       .is_shared_key = true,
       .variable = variables::kFsdpActivationOffload,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_offload_params",
       .member = &LaunchConfig::fsdp_offload_params,
       .group = kSharding,
       .help = "Offload shards to CPU memory (no effect when training on CPU)",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_offload_params",
       .is_shared_key = true,
       .variable = variables::kFsdpOffloadParams,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_backward_prefetch",
       .member = &LaunchConfig::fsdp_backward_prefetch,
       .group = kSharding,
       .has_effect = false,
       .help = "No effect: the next unit is always prefetched",
       .choices = {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"},
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_backward_prefetch",
       .is_shared_key = true,
       .variable = variables::kFsdpBackwardPrefetch,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_forward_prefetch",
       .member = &LaunchConfig::fsdp_forward_prefetch,
       .group = kSharding,
       .has_effect = false,
       .help = "No effect: the next unit is always prefetched",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_forward_prefetch",
       .is_shared_key = true,
       .variable = variables::kFsdpForwardPrefetch,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_use_orig_params",
       .member = &LaunchConfig::fsdp_use_orig_params,
       .group = kSharding,
       .has_effect = false,
       .help = "No effect: the model's original parameters are always used",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_use_orig_params",
       .is_shared_key = true,
       .variable = variables::kFsdpUseOrigParams,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_sync_module_states",
       .member = &LaunchConfig::fsdp_sync_module_states,
       .group = kSharding,
       .has_effect = false,
       .help = "No effect: rank 0's weights are always broadcast",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_sync_module_states",
       .is_shared_key = true,
       .variable = variables::kFsdpSyncModuleStates,
       .workers = WorkerRule::kWhereDecided},
      {.name = "fsdp_ignored_modules",
       .member = &LaunchConfig::fsdp_ignored_modules,
       .group = kSharding,
       .help = "Regex of module names to leave unsharded",
       .value_name = "REGEX",
       .unset_word = "auto",
       .yaml_key = "fsdp_config.fsdp_ignored_modules",
       .is_shared_key = true,
       .variable = variables::kFsdpIgnoredModules,
       .workers = WorkerRule::kWhereDecided},
  };
}

/// These fields are read by `DeepSpeedPlugin` of the Python package.
std::vector<Field> deepspeed_fields() {
  return {
      {.name = "use_deepspeed",
       .member = &LaunchConfig::use_deepspeed,
       .group = kDeepSpeed,
       .help =
           "Shard the models of a Python program as specified by a DeepSpeed "
           "configuration (docs/guide_sharding.md; "
           "`distributed_type: DEEPSPEED` in the file)",
       .variable = variables::kUseDeepSpeed,
       .workers = WorkerRule::kWhereDecided,
       .question = "Shard the model with a DeepSpeed configuration (ZeRO)?"},
      {.name = "deepspeed_config_file",
       .member = &LaunchConfig::deepspeed_config_file,
       .group = kDeepSpeed,
       .help = "DeepSpeed configuration (a JSON file). If you pass one, set "
               "the options below in that file, not here",
       .value_name = "FILE",
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.deepspeed_config_file",
       .is_shared_key = true,
       .variable = variables::kDeepSpeedConfigFile,
       .workers = WorkerRule::kWhereDecided,
       .question = "DeepSpeed JSON file, or auto for none?"},
      {.name = "zero_stage",
       .member = &LaunchConfig::zero_stage,
       .group = kDeepSpeed,
       .help = "What to shard: 0 nothing, 1 optimizer state, 2 also "
               "gradients, 3 also parameters (default: 2)",
       .value_name = "N",
       .most = 3,
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.zero_stage",
       .is_shared_key = true,
       .variable = variables::kZeroStage,
       .workers = WorkerRule::kWhereDecided,
       .question = "Which ZeRO stage (0 to 3)?"},
      {.name = "gradient_clipping",
       .member = &LaunchConfig::gradient_clipping,
       .group = kDeepSpeed,
       .help = "Clip gradients to this maximum norm in each step (default: 1; "
               "0: no clipping)",
       .value_name = "NORM",
       .check = check_clipping,
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.gradient_clipping",
       .is_shared_key = true,
       .variable = variables::kGradientClipping,
       .workers = WorkerRule::kWhereDecided,
       .question = "Maximum gradient norm (0: no clipping)?"},
      {.name = "offload_optimizer_device",
       .member = &LaunchConfig::offload_optimizer_device,
       .group = kDeepSpeed,
       .help = "Where to keep optimizer state (nvme is not supported)",
       .choices = {"none", "cpu", "nvme"},
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.offload_optimizer_device",
       .is_shared_key = true,
       .variable = variables::kOffloadOptimizerDevice,
       .workers = WorkerRule::kWhereDecided},
      {.name = "offload_param_device",
       .member = &LaunchConfig::offload_param_device,
       .group = kDeepSpeed,
       .help = "Where to keep parameters (nvme is not supported)",
       .choices = {"none", "cpu", "nvme"},
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.offload_param_device",
       .is_shared_key = true,
       .variable = variables::kOffloadParamDevice,
       .workers = WorkerRule::kWhereDecided},
      {.name = "offload_optimizer_nvme_path",
       .member = &LaunchConfig::offload_optimizer_nvme_path,
       .group = kDeepSpeed,
       .has_effect = false,
       .help = "NVMe offload is not supported",
       .value_name = "FOLDER",
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.offload_optimizer_nvme_path",
       .is_shared_key = true,
       .variable = variables::kOffloadOptimizerNvmePath,
       .workers = WorkerRule::kWhereDecided},
      {.name = "offload_param_nvme_path",
       .member = &LaunchConfig::offload_param_nvme_path,
       .group = kDeepSpeed,
       .has_effect = false,
       .help = "NVMe offload is not supported",
       .value_name = "FOLDER",
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.offload_param_nvme_path",
       .is_shared_key = true,
       .variable = variables::kOffloadParamNvmePath,
       .workers = WorkerRule::kWhereDecided},
      {.name = "zero3_init_flag",
       .member = &LaunchConfig::zero3_init_flag,
       .group = kDeepSpeed,
       .has_effect = false,
       .help = "No effect: models are created unsharded",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.zero3_init_flag",
       .is_shared_key = true,
       .variable = variables::kZero3Init,
       .workers = WorkerRule::kWhereDecided},
      {.name = "zero3_save_16bit_model",
       .member = &LaunchConfig::zero3_save_16bit_model,
       .group = kDeepSpeed,
       .has_effect = false,
       .help = "No effect: weights are saved unsharded, in their own precision",
       .value_name = "true|false",
       .check = check_switch,
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.zero3_save_16bit_model",
       .is_shared_key = true,
       .variable = variables::kZero3Save16BitModel,
       .workers = WorkerRule::kWhereDecided},
      {.name = "deepspeed_moe_layer_cls_names",
       .member = &LaunchConfig::deepspeed_moe_layer_cls_names,
       .group = kDeepSpeed,
       .has_effect = false,
       .help = "No effect: operators gather the parameters that they read",
       .value_name = "NAMES",
       .unset_word = "auto",
       .yaml_key = "deepspeed_config.deepspeed_moe_layer_cls_names",
       .is_shared_key = true,
       .variable = variables::kMoeClasses,
       .workers = WorkerRule::kWhereDecided},
  };
}

/// These fields are read by `TorchDynamoPlugin` of the Python package.
std::vector<Field> compilation_fields() {
  return {
      {.name = "dynamo_backend",
       .member = &LaunchConfig::dynamo_backend,
       .group = kCompilation,
       .help = "Compile the models of a Python program with this torch.compile "
               "backend (inductor, eager, aot_eager, cudagraphs, ... or no)",
       .value_name = "NAME",
       .check = check_compiler,
       .unset_word = "auto",
       .yaml_key = "dynamo_config.dynamo_backend",
       .is_shared_key = true,
       .variable = variables::kDynamoBackend,
       .workers = WorkerRule::kWhereDecided},
      {.name = "dynamo_mode",
       .member = &LaunchConfig::dynamo_mode,
       .group = kCompilation,
       .help = "Mode of torch.compile",
       .choices = {"default", "reduce-overhead", "max-autotune"},
       .unset_word = "auto",
       .yaml_key = "dynamo_config.dynamo_mode",
       .is_shared_key = true,
       .variable = variables::kDynamoMode,
       .workers = WorkerRule::kWhereDecided},
      {.name = "dynamo_use_fullgraph",
       .member = &LaunchConfig::dynamo_use_fullgraph,
       .group = kCompilation,
       .help = "Fail if a model does not compile to a single graph",
       .yaml_key = "dynamo_config.dynamo_use_fullgraph",
       .is_shared_key = true,
       .variable = variables::kDynamoFullgraph,
       .workers = WorkerRule::kWhereDecided},
      {.name = "dynamo_use_dynamic",
       .member = &LaunchConfig::dynamo_use_dynamic,
       .group = kCompilation,
       .help = "Compile once for all shapes instead of once per shape",
       .yaml_key = "dynamo_config.dynamo_use_dynamic",
       .is_shared_key = true,
       .variable = variables::kDynamoDynamic,
       .workers = WorkerRule::kWhereGroupDecided},
      {.name = "dynamo_use_regional_compilation",
       .member = &LaunchConfig::dynamo_use_regional_compilation,
       .group = kCompilation,
       .help = "Compile repeated blocks once instead of the whole model",
       .yaml_key = "dynamo_config.dynamo_use_regional_compilation",
       .is_shared_key = true,
       .variable = variables::kDynamoRegional,
       .workers = WorkerRule::kWhereDecided},
  };
}

std::vector<Field> all_fields() {
  std::vector<Field> all;
  for (const auto make :
       {program_fields,
        hardware_fields,
        machine_fields,
        job_fields,
        training_fields,
        parallelism_fields,
        sharding_fields,
        deepspeed_fields,
        compilation_fields}) {
    for (Field& field : make()) {
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
