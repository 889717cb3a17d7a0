// SPDX-License-Identifier: Apache-2.0
#include "core/config/foreign.h"

#include <algorithm>
#include <string>

#include "core/base/plain_text.h"

namespace accelerate {
namespace {

constexpr std::string_view kDeepSpeedLauncher =
    "DeepSpeed's launcher is not supported. Start the machines with --hosts or "
    "--hostfile";
constexpr std::string_view kMegatron =
    "Megatron-LM is not supported. Use --multi_gpu (distributed_type "
    "MULTI_GPU)";
constexpr std::string_view kOtherParallelism =
    "Context and sequence parallelism are not supported. Use "
    "--multi_gpu (distributed_type MULTI_GPU)";
constexpr std::string_view kTpu =
    "TPUs are not supported. Use --multi_gpu or --cpu (distributed_type "
    "MULTI_GPU or MULTI_CPU)";
constexpr std::string_view kDevice =
    "Only NVIDIA GPUs and CPUs are supported. Use --multi_gpu or --cpu "
    "(distributed_type MULTI_GPU or MULTI_CPU)";
constexpr std::string_view kSageMaker =
    "SageMaker jobs are not supported. Run `accelerate launch` on the "
    "instances, with compute_environment LOCAL_MACHINE";
constexpr std::string_view kFp8 = "fp8 is not supported. Use bf16";
constexpr std::string_view kIpex =
    "Intel's extension for PyTorch is not supported. Remove this setting";
constexpr std::string_view kRendezvous =
    "machines always connect to main_process_ip and main_process_port";

constexpr ForeignKey kKeys[] = {
    {"megatron_lm_config", ForeignKind::kNote, kMegatron},
    {"tp_config", ForeignKind::kNote, kOtherParallelism, true},
    {"fp8_config", ForeignKind::kSilent, kFp8},
    {"ipex_config", ForeignKind::kNote, kIpex, true},
    {"xpu_config", ForeignKind::kNote, kIpex, true},
    {"rdzv_backend", ForeignKind::kNote, kRendezvous},
    {"same_network", ForeignKind::kSilent, kRendezvous},
    {"main_training_function", ForeignKind::kSilent, kTpu},
    {"downcast_bf16", ForeignKind::kSilent, kTpu},
    {"tpu_name", ForeignKind::kSilent, kTpu},
    {"tpu_zone", ForeignKind::kSilent, kTpu},
    {"tpu_use_cluster", ForeignKind::kSilent, kTpu},
    {"tpu_cluster", ForeignKind::kSilent, kTpu, true},
    {"tpu_use_sudo", ForeignKind::kSilent, kTpu},
    {"tpu_vm", ForeignKind::kSilent, kTpu},
    {"tpu_env", ForeignKind::kSilent, kTpu},
    {"command_file", ForeignKind::kSilent, kTpu},
    {"command", ForeignKind::kSilent, kTpu, true},
    {"commands", ForeignKind::kSilent, kTpu},
    {"ec2_instance_type", ForeignKind::kSilent, kSageMaker},
    {"iam_role_name", ForeignKind::kSilent, kSageMaker},
    {"image_uri", ForeignKind::kSilent, kSageMaker},
    {"profile", ForeignKind::kSilent, kSageMaker},
    {"region", ForeignKind::kSilent, kSageMaker},
    {"base_job_name", ForeignKind::kSilent, kSageMaker},
    {"pytorch_version", ForeignKind::kSilent, kSageMaker},
    {"transformers_version", ForeignKind::kSilent, kSageMaker},
    {"py_version", ForeignKind::kSilent, kSageMaker},
    {"sagemaker_inputs_file", ForeignKind::kSilent, kSageMaker},
    {"sagemaker_metrics_file", ForeignKind::kSilent, kSageMaker},
    {"additional_args", ForeignKind::kSilent, kSageMaker},
};

struct NamedAdvice {
  std::string_view name;
  std::string_view advice;
};

constexpr NamedAdvice kDistributedTypes[] = {
    {"MEGATRON_LM", kMegatron},
    {"TP", kOtherParallelism},
    {"XLA", kTpu},
    {"TPU", kTpu},
    {"MPS", kDevice},
    {"MULTI_XPU", kDevice},
    {"MULTI_HPU", kDevice},
    {"MULTI_NPU", kDevice},
    {"MULTI_MLU", kDevice},
    {"MULTI_SDAA", kDevice},
    {"MULTI_MUSA", kDevice},
    {"MULTI_NEURON", kDevice},
    {"DATA_PARALLEL", kSageMaker},
    {"MODEL_PARALLEL", kSageMaker},
};

// A name that ends in `_` matches every flag that starts with it.
constexpr NamedAdvice kFlags[] = {
    {"deepspeed_hostfile", kDeepSpeedLauncher},
    {"deepspeed_exclusion_filter", kDeepSpeedLauncher},
    {"deepspeed_inclusion_filter", kDeepSpeedLauncher},
    {"use_megatron_lm", kMegatron},
    {"megatron_lm_", kMegatron},
    {"parallelism_config_", kOtherParallelism},
    {"tpu", kTpu},
    {"tpu_", kTpu},
    {"no_tpu_cluster", kTpu},
    {"vm", kTpu},
    {"env", kTpu},
    {"fp8_", kFp8},
    {"aws_", kSageMaker},
    {"ipex", kIpex},
    {"use_xpu", kDevice},
    {"mps", kDevice},
    {"fp16", "This flag was removed. Use --mixed_precision fp16"},
    {"num_gpus", "This flag was removed. Use --num_processes"},
    {"nproc_per_node",
     "This is an option of torchrun. Use --num_processes, the total for all "
     "machines"},
    {"nnodes", "This is an option of torchrun. Use --num_machines"},
    {"node_rank", "This is an option of torchrun. Use --machine_rank"},
    {"master_addr", "This is an option of torchrun. Use --main_process_ip"},
    {"master_port", "This is an option of torchrun. Use --main_process_port"},
};

} // namespace

std::span<const IgnoredFlag> ignored_flags() {
  static constexpr IgnoredFlag kIgnored[] = {
      {"same_network", false, "true", kRendezvous},
      {"rdzv_backend", true, "static", kRendezvous},
      {"rdzv_conf", true, "", kRendezvous},
      {"role", true, "default", "processes have no roles"},
      {"main_training_function", true, "main", "it applies only to TPUs"},
      {"downcast_bf16", false, "false", "it applies only to TPUs"},
      {"deepspeed_multinode_launcher",
       true,
       "standard",
       "--hosts and --hostfile start the machines"},
      {"monitor_interval",
       true,
       "",
       "the launcher notices immediately when a process exits"},
  };
  return kIgnored;
}

const ForeignKey* find_foreign_key(std::string_view key) {
  const auto* found = std::find_if(
      std::begin(kKeys), std::end(kKeys), [&](const ForeignKey& candidate) {
        return candidate.key == key;
      });
  return found == std::end(kKeys) ? nullptr : found;
}

bool is_off(std::string_view text) {
  const std::string lower = lower_case(text);
  return lower.empty() || lower == "no" || lower == "none" ||
         lower == "false" || lower == "null" || lower == "~" ||
         lower == "static";
}

std::string_view foreign_distributed_type(std::string_view text) {
  for (const NamedAdvice& type : kDistributedTypes) {
    if (type.name == text) {
      return type.advice;
    }
  }
  return {};
}

std::string_view foreign_flag(std::string_view name) {
  for (const NamedAdvice& flag : kFlags) {
    if (flag.name == name ||
        (flag.name.ends_with('_') && name.starts_with(flag.name))) {
      return flag.advice;
    }
  }
  return {};
}

} // namespace accelerate
