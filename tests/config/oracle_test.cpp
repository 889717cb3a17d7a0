// SPDX-License-Identifier: Apache-2.0
// Files exchanged between this program and Hugging Face Accelerate.
#include <gmock/gmock.h>

#include <cstdlib>

#include "accelerate/error.h"
#include "core/config/config_file.h"
#include "core/config/resolve.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
namespace fs = std::filesystem;

ResolvedConfig resolve_file(const fs::path& path) {
  return resolve_launch_config(
      {{"config_file", {path.string(), "--config_file"}}},
      [](const std::string&) { return std::nullopt; });
}

std::string launch_complaint(const ResolvedConfig& config) {
  try {
    check_launchable(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

// The files were written by the classes of that version.
class OldVersions : public ::testing::TestWithParam<const char*> {
 protected:
  ResolvedConfig load(const std::string& name) const {
    return resolve_file(
        fs::path(TEST_REFERENCE_DIR) / "config" /
        ("hf_" + std::string(GetParam()) + "_" + name + ".yaml"));
  }
};

TEST_P(OldVersions, LoadAsTheyWereMeant) {
  const auto plain = load("plain");
  EXPECT_TRUE(plain.values.cpu);
  EXPECT_EQ(plain.values.num_processes, 1);
  EXPECT_EQ(launch_complaint(plain), "");
  EXPECT_THAT(plain.notes, IsEmpty());

  const auto gpus = load("gpus");
  EXPECT_TRUE(gpus.values.multi_gpu);
  EXPECT_EQ(gpus.values.num_processes, 8);
  EXPECT_EQ(gpus.values.num_machines, 2);
  EXPECT_EQ(gpus.values.machine_rank, 1);
  EXPECT_EQ(gpus.values.main_process_ip, "10.0.0.1");
  EXPECT_EQ(gpus.values.main_process_port, 29501);
  EXPECT_EQ(gpus.values.mixed_precision, "fp16");
  EXPECT_EQ(launch_complaint(gpus), "");
}

TEST_P(OldVersions, ShardAsTheyWereMeant) {
  const auto sharded = load("fsdp");
  EXPECT_TRUE(sharded.values.use_fsdp);
  EXPECT_EQ(sharded.values.fsdp_sharding_strategy, "1");
  EXPECT_EQ(launch_complaint(sharded), "");
  EXPECT_THAT(sharded.notes, IsEmpty());
}

TEST_P(OldVersions, CompileAsTheyWereMeant) {
  // Version 0.11 had no such key.
  if (std::string(GetParam()) != "0.11.0") {
    const auto compiled = load("dynamo");
    EXPECT_EQ(compiled.values.dynamo_backend, "INDUCTOR");
    EXPECT_EQ(launch_complaint(compiled), "");
    EXPECT_THAT(compiled.notes, IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    OldVersions,
    ::testing::Values(
        "0.11.0",
        "0.15.0",
        "0.16.0",
        "0.20.0",
        "0.25.0",
        "0.30.0",
        "1.0.0",
        "1.5.0",
        "1.9.0",
        "1.15.0"),
    [](const auto& version) {
      std::string name = version.param;
      std::replace(name.begin(), name.end(), '.', '_');
      return "v" + name;
    });

class Oracle : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* python = std::getenv("ACCELERATE_ORACLE_PYTHON");
    if (python == nullptr) {
      GTEST_SKIP() << "ACCELERATE_ORACLE_PYTHON is not set";
    }
    python_ = python;
  }

  std::string run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {python_, TEST_ORACLE});
    const auto result = run_process(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
  /// Their files for `cases`, as FOLDER/CASE.yaml.
  void write_theirs(std::vector<std::string> cases) {
    cases.insert(cases.begin(), "write");
    cases.push_back((folder_.path() / "%s.yaml").string());
    run(cases);
  }
  /// Per file, the YAML and what their loader makes of it.
  std::vector<json> load_by_theirs(std::vector<std::string> files) {
    files.insert(files.begin(), "load");
    std::istringstream lines(run(files));
    std::vector<json> loaded;
    for (std::string line; std::getline(lines, line);) {
      loaded.push_back(json::parse(line));
    }
    EXPECT_EQ(loaded.size(), files.size() - 1);
    loaded.resize(files.size() - 1);
    return loaded;
  }
  fs::path file(const std::string& name) const { return folder_.path() / name; }

  TempDir folder_;
  std::string python_;
};

const std::map<std::string, LaunchConfig> kSameInBoth = {
    {"plain", {.num_processes = 1}},
    {"gpus",
     {.multi_gpu = true,
      .mixed_precision = "bf16",
      .num_processes = 8,
      .gpu_ids = {"0", "1"},
      .enable_cpu_affinity = true,
      .num_machines = 2,
      .machine_rank = 1,
      .main_process_ip = "10.0.0.1",
      .main_process_port = 29501,
      .debug = true}},
    {"cpus",
     {.cpu = true, .num_processes = 4, .mpirun_hostfile = "/home/x/hostfile"}},
    {"deepspeed",
     {.num_processes = 4,
      .use_deepspeed = true,
      .zero_stage = 3,
      .offload_optimizer_device = "none",
      .zero3_init_flag = "true"}},
};

TEST_F(Oracle, WritesTheSameFilesAndReadsOurs) {
  write_theirs({"plain", "gpus", "cpus", "deepspeed"});
  for (const auto& [name, config] : kSameInBoth) {
    const auto theirs = file(name + ".yaml");
    const auto ours = file(name + "_ours.yaml");
    write_config_file(ours, to_document(config));
    const auto loaded = load_by_theirs({ours, theirs});
    EXPECT_EQ(loaded[0], loaded[1]) << name;
    EXPECT_EQ(resolve_file(theirs).values, config) << name;
  }
}

TEST_F(Oracle, ReadsOurJson) {
  const auto path = file("c.json");
  write_config_file(path, to_document(kSameInBoth.at("gpus")));
  const json loaded = load_by_theirs({path})[0][1];
  EXPECT_EQ(loaded["distributed_type"], "MULTI_GPU");
  EXPECT_EQ(loaded["num_processes"], 8);
  EXPECT_EQ(loaded["gpu_ids"], "0,1");
}

// `accelerate config default` of the original writes JSON into a .yaml file.
TEST_F(Oracle, WritesJsonWithTheWrongNameThatWeRead) {
  write_theirs({"basic"});
  EXPECT_THAT(read_file(file("basic.yaml")), HasSubstr("{"));
  EXPECT_EQ(resolve_file(file("basic.yaml")).values.mixed_precision, "bf16");
}

TEST_F(Oracle, ReadsForeignFilesAfterWeRewroteThem) {
  const std::vector<std::string> cases = {
      "megatron", "tpu", "fp8", "sagemaker"};
  write_theirs(cases);
  std::vector<std::string> files;
  for (const std::string& name : cases) {
    files.push_back(file(name + ".yaml"));
  }
  const auto before = load_by_theirs(files);
  for (const std::string& path : files) {
    EXPECT_THAT(launch_complaint(resolve_file(path)), Not(IsEmpty())) << path;
    write_config_file(path, complete_document(read_config_file(path), 1));
  }
  const auto after = load_by_theirs(files);
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(after[i][1], before[i][1]) << files[i];
  }
}

} // namespace
} // namespace accelerate::testing
