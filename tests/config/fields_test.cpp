// SPDX-License-Identifier: Apache-2.0
#include "core/config/fields.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <set>

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/config/flags.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A flag is a promise: change this list only on purpose, with the guide.
TEST(LaunchFlags, AreExactlyThese) {
  CLI::App app;
  add_launch_flags(app);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    // CLI11 has no names for an option that the help does not show.
    const bool is_hidden = option->get_group().empty();
    names.push_back(
        is_hidden ? "hidden --" + option->get_lnames().at(0)
                  : option->get_name(false, true));
  }
  EXPECT_THAT(
      names,
      ::testing::ElementsAreArray<const char*>({
          "-h,--help",
          "--config_file,--config-file",
          "-m,--module",
          "--no_python,--no-python",
          "--cpu",
          "--multi_gpu,--multi-gpu",
          "--mixed_precision,--mixed-precision",
          "--num_processes,--num-processes",
          "--gpu_ids,--gpu-ids",
          "--num_cpu_threads_per_process,--num-cpu-threads-per-process",
          "--enable_cpu_affinity,--enable-cpu-affinity",
          "--bind_memory,--bind-memory",
          "--num_machines,--num-machines",
          "--machine_rank,--machine-rank",
          "--main_process_ip,--main-process-ip",
          "--main_process_port,--main-process-port",
          "--hosts",
          "--hostfile",
          "--mpirun_hostfile,--mpirun-hostfile",
          "--join_timeout,--join-timeout",
          "--heartbeat_seconds,--heartbeat-seconds",
          "--export",
          "--check",
          "--max_restarts,--max-restarts",
          "--grace_seconds,--grace-seconds",
          "--contain",
          "--watch",
          "--log_dir,--log-dir",
          "--log_max_mb,--log-max-mb",
          "-t,--tee",
          "--local_ranks_filter,--local-ranks-filter",
          "--timestamps",
          "-q,--quiet",
          "--debug",
          "--dry_run,--dry-run",
          "--gradient_accumulation_steps,--gradient-accumulation-steps",
          "--fast",
          "--use_parallelism_config,--use-parallelism-config",
          "--parallelism_config_dp_replicate_size,"
          "--parallelism-config-dp-replicate-size",
          "--parallelism_config_dp_shard_size,"
          "--parallelism-config-dp-shard-size",
          "--parallelism_config_tp_size,--parallelism-config-tp-size",
          "--use_fsdp,--use-fsdp",
          "--fsdp_version,--fsdp-version",
          "--fsdp_sharding_strategy,--fsdp-sharding-strategy",
          "--fsdp_reshard_after_forward,--fsdp-reshard-after-forward",
          "--fsdp_auto_wrap_policy,--fsdp-auto-wrap-policy",
          "--fsdp_transformer_layer_cls_to_wrap,--fsdp-transformer-layer-cls-"
          "to-wrap",
          "--fsdp_min_num_params,--fsdp-min-num-params",
          "--fsdp_state_dict_type,--fsdp-state-dict-type",
          "--fsdp_cpu_ram_efficient_loading,--fsdp-cpu-ram-efficient-loading",
          "--fsdp_activation_checkpointing,--fsdp-activation-checkpointing",
          "--fsdp_activation_checkpointing_offload,--fsdp-activation-"
          "checkpointing-offload",
          "--fsdp_offload_params,--fsdp-offload-params",
          "--fsdp_backward_prefetch,--fsdp-backward-prefetch",
          "--fsdp_forward_prefetch,--fsdp-forward-prefetch",
          "--fsdp_use_orig_params,--fsdp-use-orig-params",
          "--fsdp_sync_module_states,--fsdp-sync-module-states",
          "--fsdp_ignored_modules,--fsdp-ignored-modules",
          "--use_deepspeed,--use-deepspeed",
          "--deepspeed_config_file,--deepspeed-config-file",
          "--zero_stage,--zero-stage",
          "--gradient_clipping,--gradient-clipping",
          "--offload_optimizer_device,--offload-optimizer-device",
          "--offload_param_device,--offload-param-device",
          "--offload_optimizer_nvme_path,--offload-optimizer-nvme-path",
          "--offload_param_nvme_path,--offload-param-nvme-path",
          "--zero3_init_flag,--zero3-init-flag",
          "--zero3_save_16bit_model,--zero3-save-16bit-model",
          "--deepspeed_moe_layer_cls_names,--deepspeed-moe-layer-cls-names",
          "--dynamo_backend,--dynamo-backend",
          "--dynamo_mode,--dynamo-mode",
          "--dynamo_use_fullgraph,--dynamo-use-fullgraph",
          "--dynamo_use_dynamic,--dynamo-use-dynamic",
          "--dynamo_use_regional_compilation,--dynamo-use-regional-"
          "compilation",
          // These change nothing.
          "hidden --same_network",
          "hidden --rdzv_backend",
          "hidden --rdzv_conf",
          "hidden --role",
          "hidden --main_training_function",
          "hidden --downcast_bf16",
          "hidden --deepspeed_multinode_launcher",
          "hidden --monitor_interval",
      }));
}

TEST(LaunchFlags, FillTheLayerInBothSpellings) {
  CLI::App app;
  const auto layer = add_launch_flags(app);
  app.parse(
      "--num-processes 3 --gpu_ids=0,1 -q --debug=false --tee 1 -t 2 "
      "--export A --export B,C");
  EXPECT_EQ(layer->at("export").text, "A,B,C");
  EXPECT_EQ(layer->at("num_processes").text, "3");
  EXPECT_EQ(layer->at("num_processes").location, "--num_processes");
  EXPECT_EQ(layer->at("gpu_ids").text, "0,1");
  EXPECT_EQ(layer->at("quiet").text, "true");
  EXPECT_EQ(layer->at("debug").text, "false");
  EXPECT_EQ(layer->at("tee").text, "2");
  EXPECT_EQ(layer->size(), 6U);
}

TEST(LaunchFlags, OfOtherEnginesGetOneSentence) {
  const std::pair<const char*, const char*> cases[] = {
      {"--deepspeed-hostfile", "--hostfile"},
      {"--use_megatron_lm", "Megatron"},
      {"--megatron_lm_tp_degree", "Megatron"},
      {"--parallelism-config-cp-size", "Context"},
      {"--tpu", "TPU"},
      {"--fp8_backend", "bf16"},
      {"--aws_access_key_id", "SageMaker"},
  };
  for (const auto& [flag, part] : cases) {
    EXPECT_THAT(explain_unknown_flag(flag), HasSubstr(part)) << flag;
  }
}

TEST(LaunchFlags, ProposeTheNearestName) {
  EXPECT_EQ(
      explain_unknown_flag("--num_proceses=3"),
      "[launch] unknown option '--num_proceses=3'; did you mean "
      "'--num_processes'?");
  EXPECT_THAT(
      explain_unknown_flag("--main-proces-ip"), HasSubstr("main_process_ip"));
  EXPECT_THAT(explain_unknown_flag("--banana"), HasSubstr("--help"));
}

TEST(Fields, HaveNamesKeysAndVariablesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const Field& field : launch_fields()) {
    for (const auto part : {field.name, field.yaml_key, field.variable}) {
      EXPECT_TRUE(
          part.empty() || names.insert(part).second || part == field.name)
          << part;
    }
    EXPECT_FALSE(field.help.empty()) << field.name;
    EXPECT_TRUE(
        field.is_flag() || !field.value_name.empty() || !field.choices.empty())
        << field.name;
  }
}

TEST(Fields, TakeBackTheTextOfTheirDefault) {
  for (const Field& field : launch_fields()) {
    const std::string text = format_field(LaunchConfig{}, field);
    if (text.empty()) {
      continue; // Unset texts have no word.
    }
    LaunchConfig config;
    assign_field(config, field, {text, "test"});
    EXPECT_EQ(config, LaunchConfig{}) << field.name;
  }
}

TEST(Fields, RejectInvalidTexts) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"num_processes", "two", "a whole number from 1 to 4096"},
      {"num_processes", "0", "from 1 to 4096"},
      {"num_processes", "5000", "from 1 to 4096"},
      {"num_processes", "99999999999999999999", "from 1 to 4096"},
      {"num_processes", "", "from 1 to 4096, or auto, not ''"},
      {"num_processes", "2 ", "not '2 '"},
      {"main_process_port", "70000", "from 0 to 65535"},
      {"machine_rank", "-1", "from 0 to 4095"},
      {"cpu", "maybe", "true or false"},
      {"mixed_precision", "half", "no, fp16 or bf16"},
      {"mixed_precision", "fp8", "--flag fp8 is not supported; use no"},
      {"gpu_ids", "0,,1", "0,1"},
      {"gpu_ids", "first", "0,1"},
      {"export", "A=1", "A,B"},
      {"hosts", "a,,b", "node0,node1"},
      {"hosts", "a b", "node0,node1"},
      {"hosts", "a,-oProxyCommand=x", "node0,node1"},
      {"hosts", "a,me@-b", "node0,node1"},
      {"tee", "4", "e.g. 0:3,1:2"},
      {"tee", "0:3,", "e.g. 0:3,1:2"},
      {"local_ranks_filter", "0,,1", "e.g. 0,1"},
  };
  for (const auto& [name, text, expected] : cases) {
    LaunchConfig config;
    try {
      assign_field(config, *find_field(name), {text, "--flag"});
      ADD_FAILURE() << name << " took '" << text << "'";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("--flag ")) << name;
      EXPECT_THAT(error.what(), HasSubstr(expected)) << name;
    }
    EXPECT_EQ(config, LaunchConfig{}) << name;
  }
}

// How users, containers and Slurm hide all GPUs.
TEST(Fields, TakeEveryWordForNoGpu) {
  for (const char* none : {"-1", "none", "void", "NoDevFiles"}) {
    LaunchConfig config;
    assign_field(config, *find_field("gpu_ids"), {none, "test"});
    EXPECT_THAT(config.gpu_ids, ElementsAre(none));
  }
}

TEST(Fields, ReadEveryWordForYesAndNo) {
  for (const char* yes : {"true", "True", "yes", "ON", "1", "y"}) {
    EXPECT_EQ(parse_bool(yes), true) << yes;
  }
  for (const char* no : {"false", "False", "no", "OFF", "0", "n"}) {
    EXPECT_EQ(parse_bool(no), false) << no;
  }
  EXPECT_EQ(parse_bool("2"), std::nullopt);
  EXPECT_EQ(parse_bool(""), std::nullopt);
}

} // namespace
} // namespace accelerate
