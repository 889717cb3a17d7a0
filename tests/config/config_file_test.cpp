// SPDX-License-Identifier: Apache-2.0
#include "core/config/config_file.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

ConfigFile parse(const std::string& text) {
  return parse_config(text, "f");
}

std::map<std::string, std::string> texts(const ConfigFile& file) {
  std::map<std::string, std::string> result;
  for (const auto& [name, value] : file.values) {
    result[name] = value.text;
  }
  return result;
}

using Texts = std::map<std::string, std::string>;

TEST(ConfigFile, TakesTheKeysOfVersion011) {
  const auto file = parse(
      "compute_environment: LOCAL_MACHINE\ndeepspeed_config: {}\n"
      "distributed_type: MULTI_GPU\nfsdp_config: {}\nmachine_rank: 0\n"
      "main_process_ip: null\nmain_process_port: null\n"
      "main_training_function: main\nmixed_precision: fp16\n"
      "num_machines: 1\nnum_processes: 4\nuse_cpu: false\n");
  EXPECT_EQ(
      texts(file),
      (Texts{
          {"cpu", "false"},
          {"machine_rank", "0"},
          {"mixed_precision", "fp16"},
          {"multi_gpu", "true"},
          {"num_machines", "1"},
          {"num_processes", "4"}}));
  EXPECT_EQ(file.values.at("num_processes").location, "f:11");
  EXPECT_THAT(file.foreign, IsEmpty());
  EXPECT_THAT(file.notes, IsEmpty());
}

TEST(ConfigFile, MigratesOldKeys) {
  EXPECT_EQ(texts(parse("fp16: true\n")), (Texts{{"mixed_precision", "fp16"}}));
  EXPECT_EQ(texts(parse("fp16: false\n")), Texts{});
  EXPECT_EQ(
      texts(parse("fp16: true\nmixed_precision: bf16\n")),
      (Texts{{"mixed_precision", "bf16"}}));
  EXPECT_TRUE(parse("dynamo_backend: 'NO'\n").document.empty());
  const auto dynamo = parse("dynamo_backend: INDUCTOR\n");
  EXPECT_EQ(texts(dynamo), (Texts{{"dynamo_backend", "INDUCTOR"}}));
  EXPECT_EQ(
      dynamo.document.dump(),
      R"({"dynamo_config":{"dynamo_backend":"INDUCTOR"}})");
  EXPECT_THAT(
      parse("ipex_config:\n  ipex: false\n  use_xpu: false\n").notes,
      IsEmpty());
  EXPECT_THAT(parse("ipex_config: {ipex: true}\n").notes, SizeIs(1));
}

TEST(ConfigFile, TakesNestedKeysAndLists) {
  EXPECT_EQ(
      texts(parse("mpirun_config:\n  mpirun_ccl: '1'\n  mpirun_hostfile: /h\n"
                  "hosts: [a, b]\ngpu_ids: 0,1\n")),
      (Texts{{"gpu_ids", "0,1"}, {"hosts", "a,b"}, {"mpirun_hostfile", "/h"}}));
  EXPECT_EQ(texts(parse("gpu_ids: 1\n")), (Texts{{"gpu_ids", "1"}}));
  EXPECT_EQ(texts(parse("mpirun_config: {}\n")), Texts{});
}

TEST(ConfigFile, TakesTheSectionOnSharding) {
  EXPECT_EQ(
      texts(parse("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
                  "  fsdp_reshard_after_forward: true\n"
                  "  fsdp_transformer_layer_cls_to_wrap: A,B\n"
                  "  fsdp_state_dict_type: null\n")),
      (Texts{
          {"fsdp_reshard_after_forward", "true"},
          {"fsdp_transformer_layer_cls_to_wrap", "A,B"},
          {"fsdp_version", "2"},
          {"use_fsdp", "true"}}));
  // The first versions, and files written by hand.
  EXPECT_EQ(
      texts(parse("fsdp_config:\n  fsdp_sharding_strategy: 1\n"
                  "  fsdp_backward_prefetch_policy: BACKWARD_PRE\n"
                  "  offload_params: false\n")),
      (Texts{
          {"fsdp_backward_prefetch", "BACKWARD_PRE"},
          {"fsdp_offload_params", "false"},
          {"fsdp_sharding_strategy", "1"}}));
  const auto mistyped = parse("fsdp_config: {fsdp_versoin: 2}\n");
  ASSERT_THAT(mistyped.notes, SizeIs(1));
  EXPECT_THAT(mistyped.notes[0], HasSubstr("'fsdp_version'"));
  const std::pair<const char*, const char*> refused[] = {
      {"fsdp_config: 2\n", "must be a mapping"},
      {"fsdp_config: {fsdp_version: 3}\n", "from 1 to 2"},
      {"fsdp_config: {fsdp_sharding_strategy: ALL}\n", "FULL_SHARD"},
  };
  for (const auto& row : refused) {
    EXPECT_THAT(
        [&] { parse(row.first); },
        ::testing::ThrowsMessage<ConfigError>(HasSubstr(row.second)));
  }
}

TEST(ConfigFile, TakesTheSectionOfDeepSpeed) {
  EXPECT_EQ(
      texts(parse("distributed_type: DEEPSPEED\ndeepspeed_config:\n"
                  "  gradient_accumulation_steps: 4\n"
                  "  gradient_clipping: 1.0\n"
                  "  offload_optimizer_device: none\n"
                  "  zero3_init_flag: true\n  zero_stage: 3\n")),
      (Texts{
          {"gradient_accumulation_steps", "4"},
          {"gradient_clipping", "1.0"},
          {"offload_optimizer_device", "none"},
          {"use_deepspeed", "true"},
          {"zero3_init_flag", "true"},
          {"zero_stage", "3"}}));
  const auto launcher =
      parse("deepspeed_config: {deepspeed_multinode_launcher: pdsh}\n");
  ASSERT_THAT(launcher.notes, SizeIs(1));
  EXPECT_THAT(launcher.notes[0], HasSubstr("deepspeed_multinode_launcher"));
  const std::pair<const char*, const char*> refused[] = {
      {"deepspeed_config: {zero_stage: 4}\n", "from 0 to 3"},
      {"deepspeed_config: {gradient_clipping: -1}\n", "at least 0"},
      {"deepspeed_config: {offload_param_device: disk}\n", "nvme"},
  };
  for (const auto& row : refused) {
    EXPECT_THAT(
        [&] { parse(row.first); },
        ::testing::ThrowsMessage<ConfigError>(HasSubstr(row.second)));
  }
}

TEST(ConfigFile, TakesJson) {
  EXPECT_EQ(
      texts(
          parse("{\n  \"distributed_type\": \"NO\",\n  \"mixed_precision\": "
                "\"no\",\n  \"num_processes\": 1,\n  \"use_cpu\": true\n}\n")),
      (Texts{
          {"cpu", "true"}, {"mixed_precision", "no"}, {"num_processes", "1"}}));
}

TEST(ConfigFile, TakesTheSectionOnCompilation) {
  EXPECT_EQ(
      texts(parse("dynamo_config:\n  dynamo_backend: AOT_EAGER\n"
                  "  dynamo_mode: max-autotune\n  use_dynamic: true\n"
                  "  dynamo_use_fullgraph: false\n")),
      (Texts{
          {"dynamo_backend", "AOT_EAGER"},
          {"dynamo_mode", "max-autotune"},
          {"dynamo_use_dynamic", "true"},
          {"dynamo_use_fullgraph", "false"}}));
  EXPECT_THAT(
      parse("dynamo_config: {dynamo_bakend: EAGER}\n").notes[0],
      HasSubstr("'dynamo_backend'"));
  for (const char* text :
       {"dynamo_config: {dynamo_backend: GCC}\n", "dynamo_backend: GCC\n"}) {
    EXPECT_THAT(
        [&] { parse(text); },
        ::testing::ThrowsMessage<ConfigError>(HasSubstr("inductor")));
  }
}

TEST(ConfigFile, NamesTheEngineThatIsMissing) {
  const std::pair<const char*, const char*> cases[] = {
      {"distributed_type: MEGATRON_LM\n", "Megatron"},
      {"distributed_type: TPU\n", "TPU"},
      {"distributed_type: XLA\n", "TPU"},
      {"distributed_type: MULTI_NPU\n", "NVIDIA"},
      {"distributed_type: MPS\n", "NVIDIA"},
      {"compute_environment: AMAZON_SAGEMAKER\n", "SageMaker"},
      {"mixed_precision: fp8\n", "bf16"},
      {"parallelism_config: {parallelism_config_cp_size: 2}\n", "Context"},
  };
  for (const auto& [text, part] : cases) {
    const auto file = parse(text);
    ASSERT_THAT(file.foreign, SizeIs(1)) << text;
    EXPECT_THAT(file.foreign[0].advice, HasSubstr(part));
    EXPECT_EQ(file.foreign[0].location, "f:1");
  }
}

TEST(ConfigFile, AcceptsSectionsOfUnusedEngines) {
  const auto file = parse(
      "distributed_type: MULTI_GPU\nmegatron_lm_config:\n  a: 2\n"
      "tpu_name: t\ndowncast_bf16: 'no'\n");
  EXPECT_THAT(file.foreign, IsEmpty());
  ASSERT_THAT(file.notes, SizeIs(1));
  EXPECT_THAT(file.notes[0], HasSubstr("megatron_lm_config (f:2) is ignored"));
}

// As the original's questionnaire writes them where nothing was chosen.
TEST(ConfigFile, AcceptsSectionsOfADisabledEngine) {
  for (const char* text :
       {"dynamo_config:\n  dynamo_backend: 'NO'\n  dynamo_mode: default\n"
        "  dynamo_use_dynamic: true\n  dynamo_use_fullgraph: false\n",
        "dynamo_config: {}\n",
        "parallelism_config:\n  parallelism_config_cp_backend: torch\n"
        "  parallelism_config_cp_comm_strategy: allgather\n"
        "  parallelism_config_cp_size: 1\n"
        "  parallelism_config_dp_replicate_size: 1\n"
        "  parallelism_config_dp_shard_size: 1\n"
        "  parallelism_config_tp_size: 1\n"}) {
    const auto file = parse(text);
    EXPECT_THAT(file.foreign, IsEmpty()) << text;
    EXPECT_THAT(file.notes, IsEmpty()) << text;
  }
}

TEST(ConfigFile, TakesReplicasAndShards) {
  const auto file = parse(
      "parallelism_config:\n  parallelism_config_dp_replicate_size: 4\n"
      "  dp_shard_size: 1\n  parallelism_config_tp_size: 1\n");
  EXPECT_THAT(file.foreign, IsEmpty());
  EXPECT_EQ(
      texts(file),
      (Texts{
          {"parallelism_config_dp_replicate_size", "4"},
          {"parallelism_config_dp_shard_size", "1"},
          {"parallelism_config_tp_size", "1"},
          {"use_parallelism_config", "true"}}));
  EXPECT_EQ(file.values.at("use_parallelism_config").location, "f:2");
}

TEST(ConfigFile, TakesMergedMappings) {
  const auto file = parse(
      "mpirun_config: &base {mpirun_hostfile: hosts}\n"
      "deepspeed_config:\n  <<: *base\n  own: 1\n");
  EXPECT_EQ(
      file.document["deepspeed_config"].dump(),
      R"({"mpirun_hostfile":"hosts","own":1})");
}

TEST(ConfigFile, EscapesControlCharacters) {
  try {
    parse("\"num_\\e[2Jprocesses\": 2\n");
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown key 'num_\\x1b[2Jprocesses'"));
  }
}

TEST(ConfigFile, RejectsUnknownContentInOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"num_proceses: 2\n",
       "[f:1] unknown key 'num_proceses'; did you mean 'num_processes'?"},
      {"\n\nuse_gpu: 2\n",
       "[f:3] unknown key 'use_gpu'; did you mean 'use_cpu'"},
      {"banana: 1\n", "unknown key 'banana'; docs/options.md lists all keys"},
      {"mpirun_config: {mpirun_hostfil: x}\n",
       "did you mean 'mpirun_hostfile'"},
      {"mpirun_config: 3\n", "must be a mapping"},
      {"num_processes: two\n",
       "[f:1] num_processes must be a whole number from 1 to 4096 "
       "(without quotes), not \"two\""},
      {"num_processes: '2'\n", "(without quotes)"},
      {"num_processes: 2.0\n", "a whole number"},
      {"num_processes: true\n", "a whole number"},
      {"num_processes: [2]\n", "a whole number"},
      {"debug: 1\n", "true or false"},
      {"debug: 'true'\n", "true or false (without quotes)"},
      {"use_cpu: {a: b}\n", "true or false"},
      {"mixed_precision: fp32\n",
       "[f:1] mixed_precision fp32 is not supported; use no, fp16 or bf16"},
      {"main_process_ip: [a]\n", "a string"},
      {"main_process_port: 70000\n", "from 0 to 65535"},
      {"hosts: [[a]]\n", "hosts"},
      {"distributed_type: MULTI\n",
       "NO, MULTI_GPU, MULTI_CPU, FSDP or DEEPSPEED"},
      {"compute_environment: CLOUD\n", "LOCAL_MACHINE"},
      {"fp16: maybe\n", "mixed_precision"},
      {"parallelism_config: {dp_replicate_size: two}\n", "a whole number"},
      {"parallelism_config: {dp_shard_size: 0}\n", "from 1 to 4096"},
  };
  for (const auto& [text, part] : cases) {
    try {
      parse(text);
      ADD_FAILURE() << "taken: " << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      EXPECT_THAT(error.what(), HasSubstr("f:"));
    }
  }
}

TEST(ConfigFile, MustBeReadable) {
  const testing::TempDir folder;
  const std::pair<std::filesystem::path, const char*> cases[] = {
      {folder.path() / "missing.yaml", "accelerate config"},
      {folder.path(), "is a folder"}};
  for (const auto& [path, part] : cases) {
    try {
      read_config_file(path);
      ADD_FAILURE() << path;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

TEST(ConfigFile, WithoutAnEndIsRefused) {
  try {
    read_config_file("/dev/zero");
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has more than 1048576 bytes"));
  }
}

} // namespace
} // namespace accelerate
