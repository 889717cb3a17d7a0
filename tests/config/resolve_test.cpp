// SPDX-License-Identifier: Apache-2.0
#include "core/config/resolve.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "core/config/env_bridge.h"
#include "core/config/fields.h"
#include "support/temp_dir.h"
#include "support/variables.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using testing::Variables;

EnvLookup lookup_away(Variables values) {
  // The environment of the user who runs the tests must not leak in.
  values.emplace("HF_HOME", "/nonexistent");
  return testing::lookup(std::move(values));
}

ConfigLayer flag(const std::string& name, const std::string& text) {
  return {{name, {text, "--" + name}}};
}

/// Three texts that differ from each other and from the default.
struct Row {
  const char* field;
  const char* in_file;
  const char* in_env;
  const char* as_flag;
};

// Written by hand; a field that is missing here fails the test below.
const Row kRows[] = {
    {"mixed_precision", "fp16", "bf16", "no"},
    {"num_processes", "2", "3", "4"},
    {"gpu_ids", "0,1", "2,3", "GPU-7"},
    {"num_cpu_threads_per_process", "2", "3", "4"},
    {"num_machines", "2", "3", "4"},
    {"machine_rank", "1", "2", "3"},
    {"main_process_ip", "10.0.0.1", "node1", "node2"},
    {"main_process_port", "1001", "1002", "0"},
    {"hosts", "a,b", "c,d", "e"},
    {"hostfile", "/a", "/b", "/c"},
    {"mpirun_hostfile", "/a", "/b", "/c"},
    {"join_timeout", "5", "6", "7"},
    {"heartbeat_seconds", "5", "6", "7"},
    {"export", "A", "B,C", "D"},
    {"check", "true", "false", "true"},
    {"max_restarts", "1", "2", "3"},
    {"grace_seconds", "1", "2", "3"},
    {"contain", "true", "false", "true"},
    {"watch", nullptr, nullptr, "true"},
    {"log_dir", "/a", "/b", "/c"},
    {"log_max_mb", "1", "2", "3"},
    {"tee", "0", "1", "0:3,1:2"},
    {"local_ranks_filter", "0", "0,1", "2"},
    {"timestamps", "true", "false", "true"},
    {"gradient_accumulation_steps", "2", "4", "8"},
    {"fast", "true", "false", "true"},
    {"cpu", "true", "false", "true"},
    {"enable_cpu_affinity", "true", "false", "true"},
    {"bind_memory", "true", "false", "true"},
    {"debug", "true", "false", "true"},
    {"quiet", nullptr, "true", "false"},
    {"module", nullptr, nullptr, "true"},
    {"no_python", nullptr, nullptr, "true"},
    {"multi_gpu", nullptr, nullptr, "true"},
    {"dry_run", nullptr, nullptr, "true"},
    {"use_parallelism_config", nullptr, "true", "true"},
    {"parallelism_config_dp_replicate_size", "2", "3", "4"},
    {"parallelism_config_dp_shard_size", "2", "3", "4"},
    {"parallelism_config_tp_size", "2", "3", "4"},
    {"use_fsdp", nullptr, "true", "false"},
    {"fsdp_version", "1", "2", "1"},
    {"fsdp_sharding_strategy", "FULL_SHARD", "NO_SHARD", "1"},
    {"fsdp_reshard_after_forward", "true", "false", "true"},
    {"fsdp_auto_wrap_policy", "NO_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"},
    {"fsdp_transformer_layer_cls_to_wrap", "A", "B", "A,B"},
    {"fsdp_min_num_params", "1", "2", "3"},
    {"fsdp_state_dict_type",
     "FULL_STATE_DICT",
     "SHARDED_STATE_DICT",
     "FULL_STATE_DICT"},
    {"fsdp_cpu_ram_efficient_loading", "true", "false", "true"},
    {"fsdp_activation_checkpointing", "true", "false", "true"},
    {"fsdp_activation_checkpointing_offload", "true", "false", "true"},
    {"fsdp_offload_params", "true", "false", "true"},
    {"fsdp_backward_prefetch", "BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"},
    {"fsdp_forward_prefetch", "true", "false", "true"},
    {"fsdp_use_orig_params", "true", "false", "true"},
    {"fsdp_sync_module_states", "true", "false", "true"},
    {"fsdp_ignored_modules", "a", "b", "c"},
    {"use_deepspeed", nullptr, "true", "false"},
    {"deepspeed_config_file", "/a", "/b", "/c"},
    {"zero_stage", "1", "2", "3"},
    {"gradient_clipping", "0.5", "2", "0"},
    {"offload_optimizer_device", "none", "cpu", "nvme"},
    {"offload_param_device", "none", "cpu", "nvme"},
    {"offload_optimizer_nvme_path", "/a", "/b", "/c"},
    {"offload_param_nvme_path", "/a", "/b", "/c"},
    {"zero3_init_flag", "true", "false", "true"},
    {"zero3_save_16bit_model", "true", "false", "true"},
    {"deepspeed_moe_layer_cls_names", "A", "B", "C"},
    {"dynamo_backend", "NO", "EAGER", "inductor"},
    {"dynamo_mode", "default", "max-autotune", "reduce-overhead"},
    {"dynamo_use_fullgraph", "true", "false", "true"},
    {"dynamo_use_dynamic", "true", "false", "true"},
    {"dynamo_use_regional_compilation", "true", "false", "true"},
};

class Precedence : public ::testing::TestWithParam<Row> {
 protected:
  void expect(
      const ResolvedConfig& config,
      SourceKind kind,
      const std::string& text) const {
    const Field& field = *find_field(GetParam().field);
    EXPECT_EQ(format_field(config.values, field), text);
    EXPECT_EQ(config.kind_of(GetParam().field), kind);
  }

  testing::TempDir folder_;
};

TEST_P(Precedence, IsFlagThenEnvironmentThenFileThenDefault) {
  const Row& row = GetParam();
  const Field& field = *find_field(row.field);
  EXPECT_EQ(row.in_file == nullptr, field.yaml_key.empty());
  EXPECT_EQ(row.in_env == nullptr, field.variable.empty());
  Variables variables;
  expect(
      resolve_launch_config({}, lookup_away(variables)),
      SourceKind::kDefault,
      format_field(LaunchConfig{}, field));
  if (row.in_file != nullptr) {
    std::string key(field.yaml_key);
    const size_t dot = key.find('.');
    if (dot != std::string::npos) {
      key.replace(dot, 1, ":\n  ");
    }
    variables["ACCELERATE_CONFIG_FILE"] =
        folder_.write("c.yaml", "\n" + key + ": " + row.in_file + "\n");
    const auto config = resolve_launch_config({}, lookup_away(variables));
    expect(config, SourceKind::kFile, row.in_file);
    EXPECT_THAT(config.sources.at(row.field).location, HasSubstr("c.yaml:"));
  }
  if (row.in_env != nullptr) {
    variables[std::string(field.variable)] = row.in_env;
    const auto config = resolve_launch_config({}, lookup_away(variables));
    expect(config, SourceKind::kEnvironment, row.in_env);
    EXPECT_EQ(config.sources.at(row.field).location, field.variable);
  }
  const auto config = resolve_launch_config(
      flag(row.field, row.as_flag), lookup_away(variables));
  expect(config, SourceKind::kFlag, row.as_flag);
}

INSTANTIATE_TEST_SUITE_P(
    EveryField,
    Precedence,
    ::testing::ValuesIn(kRows),
    [](const auto& row) { return std::string(row.param.field); });

TEST(PrecedenceTable, HasEveryField) {
  EXPECT_EQ(std::size(kRows), launch_fields().size());
}

class Resolve : public ::testing::Test {
 protected:
  ResolvedConfig with_file(
      const std::string& text,
      const ConfigLayer& flags = {}) {
    return resolve_launch_config(
        flags,
        lookup_away(
            {{"ACCELERATE_CONFIG_FILE", folder_.write("c.yaml", text)}}));
  }

  std::string complaint(const ResolvedConfig& config) {
    try {
      check_launchable(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  }

  testing::TempDir folder_;
};

TEST_F(Resolve, ReadsTheFileOfTheFlagBeforeTheOneOfTheEnvironment) {
  const auto path = folder_.write("flag.yaml", "num_processes: 7\n");
  const auto config =
      with_file("num_processes: 6\n", flag("config_file", path.string()));
  EXPECT_EQ(config.values.num_processes, 7);
  EXPECT_EQ(config.file, path);
}

TEST_F(Resolve, ReadsTheDefaultFileIfItExists) {
  std::filesystem::create_directories(folder_.path() / "accelerate");
  folder_.write("accelerate/default_config.yaml", "num_processes: 5\n");
  const auto config = resolve_launch_config(
      {}, lookup_away({{"HF_HOME", folder_.path().string()}}));
  EXPECT_EQ(config.values.num_processes, 5);
}

TEST_F(Resolve, RejectsAMissingFileThatWasRequested) {
  EXPECT_THROW(
      resolve_launch_config(
          flag("config_file", "/nonexistent"), lookup_away({})),
      ConfigError);
}

// The original drops this key of the file.
TEST_F(Resolve, LetsTheFileDecideTheAffinity) {
  EXPECT_TRUE(
      with_file("enable_cpu_affinity: true\n").values.enable_cpu_affinity);
}

TEST_F(Resolve, TakesTheOriginalsFlagsThatChangeNothingAndSaysSo) {
  EXPECT_THAT(
      with_file(
          "rdzv_backend: static\nsame_network: false\n",
          {{"rdzv_backend", {"static", "--rdzv_backend"}},
           {"same_network", {"true", "--same_network"}},
           {"main_training_function", {"main", "--main_training_function"}}})
          .notes,
      IsEmpty());
  const auto in_file = with_file("rdzv_backend: c10d\n");
  ASSERT_THAT(in_file.notes, SizeIs(1));
  EXPECT_THAT(in_file.notes[0], HasSubstr("main_process_ip"));
  EXPECT_EQ(complaint(in_file), "");
  const auto as_flags = with_file(
      "debug: false\n",
      {{"rdzv_backend", {"etcd", "--rdzv_backend"}},
       {"downcast_bf16", {"true", "--downcast_bf16"}},
       {"monitor_interval", {"5", "--monitor_interval"}}});
  ASSERT_THAT(as_flags.notes, SizeIs(3));
  EXPECT_THAT(as_flags.notes[0], HasSubstr("--rdzv_backend has no effect"));
  EXPECT_THAT(as_flags.notes[1], HasSubstr("--downcast_bf16 has no effect"));
  EXPECT_THAT(as_flags.notes[2], HasSubstr("immediately"));
}

// The program decides: a Python script continues in fp32, as in the original.
TEST_F(Resolve, LeavesFp16OnTheCpuToTheProgram) {
  const auto config =
      with_file("fp16: true\nuse_cpu: true\n", flag("num_processes", "2"));
  EXPECT_EQ(config.values.mixed_precision, "fp16");
  EXPECT_EQ(complaint(config), "");
}

// The original starts one process here.
TEST_F(Resolve, KeepsTheNumberOfProcessesOnTheCpu) {
  const auto config =
      with_file("distributed_type: MULTI_CPU\nnum_processes: 4\n");
  EXPECT_TRUE(config.values.cpu);
  EXPECT_EQ(config.values.num_processes, 4);
  EXPECT_EQ(complaint(config), "");
}

// As in trl's files: all have the number, one has the type NO.
TEST_F(Resolve, StartsOneProcessIfTheFileSaysNotDistributed) {
  const std::string file =
      "num_processes: 8\ndistributed_type: \"NO\"\nuse_cpu: false\n";
  const auto config = with_file(file);
  EXPECT_EQ(config.values.num_processes, 1);
  ASSERT_THAT(config.notes, SizeIs(1));
  EXPECT_THAT(config.notes[0], HasSubstr("c.yaml:1) is ignored"));
  EXPECT_EQ(
      with_file(file, flag("num_processes", "2")).values.num_processes, 2);
}

TEST_F(Resolve, NeverResolvesToZeroProcesses) {
  const auto any = with_file("num_processes: -1\n");
  EXPECT_EQ(any.values.num_processes, std::nullopt);
  ASSERT_THAT(any.notes, SizeIs(1));
  EXPECT_THAT(any.notes[0], HasSubstr("c.yaml:1) means one process per GPU"));
  const auto two = with_file("num_processes: -1\n", flag("num_processes", "2"));
  EXPECT_EQ(two.values.num_processes, 2);
  EXPECT_THAT(two.notes, IsEmpty());
  EXPECT_THROW(with_file("num_processes: 0\n"), ConfigError);
}

TEST_F(Resolve, ReadsSwitchesThatAreTurnedOff) {
  EXPECT_FALSE(with_file("debug: true\n", flag("debug", "False")).values.debug);
}

TEST_F(Resolve, LetsTheStrongerSourceChooseTheDevice) {
  const auto on_cpu =
      with_file("distributed_type: MULTI_GPU\n", flag("cpu", "true"));
  EXPECT_TRUE(on_cpu.values.cpu);
  EXPECT_FALSE(on_cpu.values.multi_gpu);
  EXPECT_EQ(on_cpu.kind_of("multi_gpu"), SourceKind::kFlag);
  const auto on_gpus = with_file("use_cpu: true\n", flag("multi_gpu", "true"));
  EXPECT_FALSE(on_gpus.values.cpu);
  EXPECT_TRUE(on_gpus.values.multi_gpu);
}

TEST_F(Resolve, FindsValuesThatContradictEachOther) {
  const std::pair<ConfigLayer, const char*> cases[] = {
      {{{"cpu", {"1", "--cpu"}}, {"multi_gpu", {"1", "--multi_gpu"}}},
       "--cpu and --multi_gpu"},
      {{{"module", {"1", "-m"}}, {"no_python", {"1", "-n"}}}, "no_python"},
      {{{"hosts", {"a,b", "x"}}, {"hostfile", {"f", "y"}}}, "hostfile"},
      {{{"multi_gpu", {"1", "x"}}, {"num_processes", {"1", "y"}}},
       "at least 2 processes"},
      {{{"hosts", {"a,b", "x"}}, {"num_machines", {"3", "y"}}},
       "number of hosts"},
      {{{"machine_rank", {"2", "x"}}, {"num_machines", {"2", "y"}}},
       "from 0 to num_machines - 1"},
      {{{"machine_rank", {"4", "x"}}, {"num_machines", {"2:4", "y"}}},
       "from 0 to num_machines - 1"},
      {{{"hosts", {"a,b", "x"}}, {"num_machines", {"1:2", "y"}}},
       "each machine runs its own"},
      {{{"mpirun_hostfile", {"f", "x"}}, {"num_machines", {"1:2", "y"}}},
       "each machine runs its own"},
  };
  for (const auto& [flags, part] : cases) {
    EXPECT_THAT(
        complaint(resolve_launch_config(flags, lookup_away({}))),
        HasSubstr(part));
  }
}

TEST_F(Resolve, StartsAProcessForEachShardOfEachReplica) {
  const std::string section =
      "parallelism_config:\n  parallelism_config_dp_replicate_size: 4\n";
  auto config = with_file(section);
  EXPECT_TRUE(config.values.use_parallelism_config);
  EXPECT_EQ(config.values.num_processes, 4);
  EXPECT_THAT(
      config.sources.at("num_processes").location, HasSubstr("c.yaml:2"));
  EXPECT_EQ(complaint(with_file(section + "num_processes: 4\n")), "");
  EXPECT_EQ(with_file(section + "num_processes: -1\n").values.num_processes, 4);
  EXPECT_THAT(
      complaint(with_file("num_processes: 2\n" + section)),
      AllOf(
          HasSubstr("is 4, but num_processes ("), HasSubstr("c.yaml:1) is 2")));

  config = with_file(section, flag("parallelism_config_dp_shard_size", "2"));
  EXPECT_EQ(config.values.num_processes, 8);
  EXPECT_EQ(
      config.sources.at("num_processes").location,
      "--parallelism_config_dp_shard_size");
  EXPECT_EQ(
      worker_variables(config.values),
      worker_variables(
          {.num_processes = 8,
           .use_parallelism_config = true,
           .parallelism_config_dp_replicate_size = 4,
           .parallelism_config_dp_shard_size = 2}));
  EXPECT_EQ(
      with_file(section, flag("parallelism_config_tp_size", "2"))
          .values.num_processes,
      8);
  EXPECT_THAT(
      complaint(with_file(
          "num_machines: 2\nnum_processes: 6\nmachine_rank: 0\n"
          "main_process_ip: localhost\nmain_process_port: 1\n"
          "parallelism_config: {dp_replicate_size: 3, tp_size: 2}\n")),
      HasSubstr("is 2, but each machine has 3 processes"));
  EXPECT_EQ(
      worker_variables(config.values).at("ACCELERATE_USE_PARALLELISM_CONFIG"),
      "true");
  // The product has the bounds of num_processes.
  try {
    with_file(section, flag("parallelism_config_dp_shard_size", "4096"));
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr(
            "the product of the parallelism sizes must be a whole number from "
            "1 to 4096"));
  }
  // Sizes of 1, which the original always writes, enable nothing.
  config = with_file(
      "num_processes: 2\n"
      "parallelism_config: {dp_replicate_size: 1, dp_shard_size: 1}\n");
  EXPECT_FALSE(config.values.use_parallelism_config);
  EXPECT_EQ(complaint(config), "");
}

TEST_F(Resolve, TakesARangeOfMachines) {
  for (const char* text : {"num_machines: 2:4\n", "num_machines: '2:4'\n"}) {
    EXPECT_EQ(with_file(text, {}).values.num_machines, MachineRange(2, 4));
  }
  EXPECT_FALSE(with_file("debug: true\n", flag("num_machines", "3:3"))
                   .values.num_machines.is_elastic());
  for (const char* text :
       {"4:2", "0:2", "2:", ":2", "2:4:6", "1:5000", "-1:2"}) {
    EXPECT_THAT(
        [&] { with_file("debug: true\n", flag("num_machines", text)); },
        ThrowsMessage<ConfigError>(HasSubstr("or a range such as 2:4")));
  }
}

TEST_F(Resolve, AllowsOneProcessOnAFileForSeveralGpus) {
  EXPECT_EQ(
      complaint(with_file(
          "distributed_type: MULTI_GPU\nnum_processes: 8\n",
          flag("num_processes", "1"))),
      "");
}

TEST_F(Resolve, ShardsIfRequested) {
  const std::string section = "fsdp_config: {fsdp_version: 2}\n";
  const auto sharded = with_file("distributed_type: FSDP\n" + section);
  EXPECT_TRUE(sharded.values.use_fsdp);
  EXPECT_EQ(sharded.notes.size(), 0U);
  EXPECT_EQ(complaint(sharded), "");
  EXPECT_EQ(with_file(section, flag("use_fsdp", "true")).notes.size(), 0U);
  const auto other = with_file("distributed_type: MULTI_CPU\n" + section);
  ASSERT_EQ(other.notes.size(), 1U);
  EXPECT_THAT(other.notes[0], HasSubstr("c.yaml:2) is ignored"));
}

TEST_F(Resolve, ReportsAnUnusedDeepSpeedSection) {
  const std::string section = "deepspeed_config: {zero_stage: 1}\n";
  const auto sharded = with_file("distributed_type: DEEPSPEED\n" + section);
  EXPECT_TRUE(sharded.values.use_deepspeed);
  EXPECT_EQ(sharded.notes.size(), 0U);
  EXPECT_EQ(complaint(sharded), "");
  const auto other = with_file("distributed_type: FSDP\n" + section);
  ASSERT_EQ(other.notes.size(), 1U);
  EXPECT_THAT(other.notes[0], HasSubstr("c.yaml:2) is ignored"));
  EXPECT_THAT(
      complaint(with_file(
          "distributed_type: FSDP\n" + section, flag("use_deepspeed", "true"))),
      HasSubstr("contradict"));
  EXPECT_THAT(
      complaint(with_file(
          "distributed_type: DEEPSPEED\n" + section,
          flag("deepspeed_config_file", "ds.json"))),
      HasSubstr("c.yaml:2) contradict"));
}

TEST_F(Resolve, ShowsForeignEnginesButDoesNotLaunchThem) {
  const auto config =
      with_file("\ndistributed_type: XLA\nmegatron_lm_config: {a: 1}\n");
  EXPECT_THAT(
      complaint(config),
      HasSubstr("distributed_type: XLA: TPUs are not supported"));
  EXPECT_THAT(complaint(config), HasSubstr("c.yaml:2"));
  EXPECT_THAT(complaint(config), HasSubstr("MULTI_GPU"));
}

TEST_F(Resolve, LetsAFlagReplaceAForeignEngine) {
  const std::string file =
      "distributed_type: MEGATRON_LM\nmixed_precision: fp8\n";
  EXPECT_THAT(complaint(with_file(file)), HasSubstr("Megatron"));
  EXPECT_THAT(
      complaint(with_file(file, flag("multi_gpu", "true"))), HasSubstr("fp8"));
  EXPECT_EQ(
      complaint(with_file(
          file,
          {{"multi_gpu", {"true", "--multi_gpu"}},
           {"mixed_precision", {"bf16", "--mixed_precision"}}})),
      "");
}

} // namespace
} // namespace accelerate
