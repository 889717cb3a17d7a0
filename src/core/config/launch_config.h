// SPDX-License-Identifier: Apache-2.0
// The settings of a launch, and their sources.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The default port of rank 0 on several machines, as in torch.
inline constexpr int kDefaultMainProcessPort = 29500;

/// The number of processes on a machine with `num_gpus` usable GPUs, unless an
/// option sets it (see `num_local_of` in `plan.cpp`).
constexpr int default_num_local(int num_gpus) {
  return std::max(1, num_gpus);
}

/// The number of machines of a job: one number, or a range within which it may
/// shrink and grow (an elastic job).
struct MachineRange {
  constexpr MachineRange(int count = 1) : least(count), most(count) {}
  constexpr MachineRange(int least_count, int most_count)
      : least(least_count), most(most_count) {}

  bool is_elastic() const { return least != most; }
  bool operator==(const MachineRange&) const = default;

  int least;
  int most;
};

/// Every option of `accelerate launch`, merged from flags, environment, file
/// and defaults. The member initialisers are the defaults. The help texts in
/// `fields.cpp` explain the options.
struct LaunchConfig {
  // The program.
  bool module = false;
  bool no_python = false;

  // Hardware.
  bool cpu = false;
  bool multi_gpu = false;
  /// A name of `precision_name.h`.
  std::string mixed_precision = "no";
  /// The total over all machines. If unset, `default_num_local` on each.
  std::optional<int> num_processes = {};
  /// Indices or UUIDs of the GPUs to use. Empty means all.
  std::vector<std::string> gpu_ids = {};
  std::optional<int> num_cpu_threads_per_process = {};
  bool enable_cpu_affinity = false;
  bool bind_memory = false;

  // Several machines.
  MachineRange num_machines = 1;
  int machine_rank = 0;
  std::string main_process_ip = {};
  /// If unset or 0, any free port on a single machine, and
  /// `kDefaultMainProcessPort` on several.
  std::optional<int> main_process_port = {};
  std::vector<std::string> hosts = {};
  std::filesystem::path hostfile = {};
  std::filesystem::path mpirun_hostfile = {};
  /// How long launchers wait for each other, in seconds.
  int join_timeout = 60;
  /// After this time without messages, a machine is considered lost.
  int heartbeat_seconds = 30;
  /// Variables that are also passed to workers on other hosts.
  std::vector<std::string> exported = {};
  bool check = false;

  // Restarts and shutdown of the job.
  int max_restarts = 0;
  /// Seconds from the first signal to SIGKILL.
  int grace_seconds = 30;
  bool contain = false;
  bool watch = false;
  std::filesystem::path log_dir = {};
  /// Size in MiB at which a log file is rotated. 0 means never.
  int log_max_mb = 0;
  /// Streams shown in addition to the files of `log_dir`: see
  /// `stream_choice.h`.
  std::string tee = "3";
  /// The local ranks whose output is shown. Empty means all.
  std::vector<std::string> local_ranks_filter = {};
  bool timestamps = false;
  bool quiet = false;
  bool debug = false;
  bool dry_run = false;

  // Training.
  /// If unset, the program decides.
  std::optional<int> gradient_accumulation_steps = {};
  bool fast = false;

  // Parallelism. If unset, the program decides.
  bool use_parallelism_config = false;
  std::optional<int> parallelism_config_dp_replicate_size = {};
  std::optional<int> parallelism_config_dp_shard_size = {};
  std::optional<int> parallelism_config_tp_size = {};

  // Sharding. If unset, the program decides.
  bool use_fsdp = false;
  std::optional<int> fsdp_version = {};
  std::string fsdp_sharding_strategy = {};
  std::string fsdp_reshard_after_forward = {};
  std::string fsdp_auto_wrap_policy = {};
  std::string fsdp_transformer_layer_cls_to_wrap = {};
  std::optional<int> fsdp_min_num_params = {};
  std::string fsdp_state_dict_type = {};
  std::string fsdp_cpu_ram_efficient_loading = {};
  std::string fsdp_activation_checkpointing = {};
  std::string fsdp_activation_checkpointing_offload = {};
  std::string fsdp_offload_params = {};
  std::string fsdp_backward_prefetch = {};
  std::string fsdp_forward_prefetch = {};
  std::string fsdp_use_orig_params = {};
  std::string fsdp_sync_module_states = {};
  std::string fsdp_ignored_modules = {};
  bool use_deepspeed = false;
  std::string deepspeed_config_file = {};
  std::optional<int> zero_stage = {};
  /// A number, or empty.
  std::string gradient_clipping = {};
  std::string offload_optimizer_device = {};
  std::string offload_param_device = {};
  std::string offload_optimizer_nvme_path = {};
  std::string offload_param_nvme_path = {};
  std::string zero3_init_flag = {};
  std::string zero3_save_16bit_model = {};
  std::string deepspeed_moe_layer_cls_names = {};

  // Compilation. If unset, the program decides.
  std::string dynamo_backend = {};
  std::string dynamo_mode = {};
  bool dynamo_use_fullgraph = false;
  bool dynamo_use_dynamic = false;
  bool dynamo_use_regional_compilation = false;

  bool operator==(const LaunchConfig&) const = default;
};

/// Sources of values in increasing precedence.
enum class SourceKind { kDefault, kFile, kEnvironment, kFlag };

struct Source {
  SourceKind kind = SourceKind::kDefault;
  /// Where the value was set: "--num_processes", "ACCELERATE_NUM_PROCESSES",
  /// "FILE:3". Empty for a default.
  std::string location = {};

  bool operator==(const Source&) const = default;
};

/// One layer of values by field name, each as a string with its position.
struct LayerValue {
  std::string text = {};
  std::string location = {};
};
using ConfigLayer = std::map<std::string, LayerValue>;

/// A key of the file that requests an unsupported engine.
struct ForeignSetting {
  std::string key = {};
  /// The value as text. Empty for a section.
  std::string text = {};
  std::string location = {};
  /// One sentence: what it is, and what to use instead.
  std::string advice = {};
};

struct ResolvedConfig {
  LaunchConfig values = {};
  /// The source of every field, by field name.
  std::map<std::string, Source> sources = {};
  /// The file that was read. Empty if there was none.
  std::filesystem::path file = {};
  std::vector<ForeignSetting> foreign = {};
  /// Notes for the user about recognised settings without effect.
  std::vector<std::string> notes = {};

  SourceKind kind_of(const std::string& field) const {
    const auto found = sources.find(field);
    return found == sources.end() ? SourceKind::kDefault : found->second.kind;
  }
};

} // namespace accelerate
