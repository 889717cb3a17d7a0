// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "accelerate/error.h"
#include "core/config/config_file.h"
#include "core/config/resolve.h"
#include "core/config/yaml_tree.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::read_file;

// What Hugging Face Accelerate 1.15 writes for "No distributed training".
TEST(ToDocument, IsTheOriginalsFileForOneProcess) {
  EXPECT_EQ(
      to_yaml(to_document({.num_processes = 1})),
      "compute_environment: LOCAL_MACHINE\ndebug: false\n"
      "distributed_type: 'NO'\ndowncast_bf16: 'no'\n"
      "enable_cpu_affinity: false\ngpu_ids: all\nmachine_rank: 0\n"
      "main_training_function: main\nmixed_precision: 'no'\n"
      "num_machines: 1\nnum_processes: 1\nrdzv_backend: static\n"
      "same_network: true\ntpu_env: []\ntpu_use_cluster: false\n"
      "tpu_use_sudo: false\nuse_cpu: false\n");
}

TEST(ToDocument, NamesTheKindOfRun) {
  const auto type = [](const LaunchConfig& config) {
    return to_document(config)["distributed_type"];
  };
  EXPECT_EQ(type({.multi_gpu = true, .num_processes = 2}), "MULTI_GPU");
  EXPECT_EQ(type({.num_processes = 2}), "MULTI_GPU");
  EXPECT_EQ(type({.cpu = true, .num_processes = 2}), "MULTI_CPU");
  EXPECT_EQ(
      type({.cpu = true, .num_processes = 1, .num_machines = 2}), "MULTI_CPU");
  EXPECT_EQ(type({.cpu = true, .num_processes = 1}), "NO");
  EXPECT_EQ(type({.num_processes = 1}), "NO");
}

TEST(ToDocument, HasTheOriginalsSectionOnSharding) {
  const auto document = to_document(
      {.cpu = true,
       .num_processes = 2,
       .use_fsdp = true,
       .fsdp_version = 2,
       .fsdp_reshard_after_forward = "true",
       .fsdp_auto_wrap_policy = "NO_WRAP"});
  EXPECT_EQ(document["distributed_type"], "FSDP");
  EXPECT_EQ(
      document["fsdp_config"].dump(),
      R"({"fsdp_auto_wrap_policy":"NO_WRAP",)"
      R"("fsdp_reshard_after_forward":true,"fsdp_version":2})");
  EXPECT_FALSE(to_document({.num_processes = 2}).contains("fsdp_config"));
  const auto other =
      to_document({.num_processes = 2, .use_deepspeed = true, .zero_stage = 1});
  EXPECT_EQ(other["distributed_type"], "DEEPSPEED");
  EXPECT_EQ(other["deepspeed_config"].dump(), R"({"zero_stage":1})");
}

TEST(ToDocument, HasTheOriginalsSectionOnCompilation) {
  const auto document =
      to_document({.dynamo_backend = "INDUCTOR", .dynamo_use_dynamic = true});
  EXPECT_EQ(
      document["dynamo_config"].dump(),
      R"({"dynamo_backend":"INDUCTOR","dynamo_use_dynamic":true})");
  EXPECT_FALSE(to_document({.num_processes = 2}).contains("dynamo_config"));
}

TEST(ToDocument, ComesBackAsTheSameConfiguration) {
  const LaunchConfig config = {
      .cpu = true,
      .mixed_precision = "bf16",
      .num_processes = 6,
      .num_cpu_threads_per_process = 2,
      .enable_cpu_affinity = true,
      .num_machines = {3, 5},
      .machine_rank = 2,
      .main_process_ip = "10.0.0.1",
      .main_process_port = 29501,
      .hosts = {"a", "b", "c"},
      .mpirun_hostfile = "/h",
      .max_restarts = 3,
      .log_dir = "/a b",
      .tee = "1",
      .debug = true,
      .gradient_accumulation_steps = 4};
  const testing::TempDir folder;
  for (const char* name : {"c.yaml", "c.json"}) {
    const auto path = folder.path() / name;
    write_config_file(path, to_document(config));
    const auto read = resolve_launch_config(
        {{"config_file", {path.string(), "--config_file"}}},
        [](const std::string&) { return std::nullopt; });
    EXPECT_EQ(read.values, config) << read_file(path);
  }
  EXPECT_TRUE(json::accept(read_file(folder.path() / "c.json")));
}

TEST(CompleteDocument, KeepsForeignKeysAndRenamesOldOnes) {
  const auto file = parse_config(
      "distributed_type: FSDP\nfp16: true\nfsdp_config:\n  fsdp_version: 2\n"
      "  fsdp_auto_wrap_policy: NO_WRAP\ndeepspeed_config: {}\n"
      "tpu_vm: [a, b]\nipex_config: {ipex: false}\nnum_processes: 2\n",
      "f");
  const json document = complete_document(file, 1);
  EXPECT_EQ(document["distributed_type"], "FSDP");
  EXPECT_EQ(document["mixed_precision"], "fp16");
  EXPECT_EQ(document["fsdp_config"]["fsdp_version"], 2);
  EXPECT_EQ(document["fsdp_config"]["fsdp_auto_wrap_policy"], "NO_WRAP");
  EXPECT_EQ(document["tpu_vm"], json::parse(R"(["a", "b"])"));
  EXPECT_EQ(document["num_processes"], 2);
  EXPECT_EQ(document["rdzv_backend"], "static");
  for (const char* gone : {"fp16", "ipex_config", "deepspeed_config"}) {
    EXPECT_FALSE(document.contains(gone)) << gone;
  }
}

TEST(CompleteDocument, GivesSeveralProcessesTheMachinesDevices) {
  const auto type = [](const std::string& text, int num_gpus) {
    return complete_document(parse_config(text, "f"), num_gpus)
        .at("distributed_type")
        .get<std::string>();
  };
  EXPECT_EQ(type("num_processes: 2\n", 0), "MULTI_CPU");
  EXPECT_EQ(type("num_processes: 2\n", 1), "MULTI_GPU");
  EXPECT_EQ(type("num_processes: 1\n", 0), "NO");
  EXPECT_EQ(type("num_processes: 2\nuse_cpu: true\n", 1), "MULTI_CPU");
  EXPECT_EQ(
      type("num_processes: 2\ndistributed_type: MULTI_GPU\n", 0), "MULTI_GPU");
  const auto document =
      complete_document(parse_config("num_processes: 2\n", "f"), 0);
  EXPECT_EQ(document["use_cpu"], true);
}

TEST(CompleteDocument, AddsNothingToSageMakersFiles) {
  const auto file = parse_config(
      "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"
      "ec2_instance_type: ml.p3\niam_role_name: r\nmixed_precision: 'no'\n",
      "f");
  EXPECT_EQ(complete_document(file, 1), file.document);
}

TEST(WriteConfigFile, MakesFoldersAndLeavesNoOtherFiles) {
  const testing::TempDir folder;
  const auto path = folder.path() / "a" / "b" / "c.yaml";
  write_config_file(path, {{"debug", true}});
  EXPECT_EQ(read_file(path), "debug: true\n");
  write_config_file(path, {{"debug", false}});
  EXPECT_EQ(read_file(path), "debug: false\n");
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(path.parent_path()), {}),
      1);
}

TEST(WriteConfigFile, KeepsALinkAndTheModeOfTheFile) {
  const testing::TempDir folder;
  const auto real = folder.write("real.yaml", "debug: true\n");
  chmod(real.c_str(), 0600);
  std::filesystem::create_symlink(real, folder.path() / "link.yaml");
  write_config_file(folder.path() / "link.yaml", {{"debug", false}});
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link.yaml"));
  EXPECT_EQ(read_file(real), "debug: false\n");
  struct stat status {};
  ASSERT_EQ(stat(real.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST(WriteConfigFile, ReportsWhereItCannotWrite) {
  const testing::TempDir folder;
  const auto file = folder.write("file", "");
  try {
    write_config_file(file / "c.yaml", {{"debug", true}});
    ADD_FAILURE();
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr((file / "c.yaml").string()));
    EXPECT_THAT(error.what(), HasSubstr("--config_file"));
  }
}

} // namespace
} // namespace accelerate
