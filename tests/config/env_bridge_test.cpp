// SPDX-License-Identifier: Apache-2.0
#include "core/config/env_bridge.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"
#include "support/variables.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using testing::lookup;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(ReadEnvironment, TakesTheNamesOfTheOriginal) {
  const auto layer = read_environment(lookup({
      {"ACCELERATE_MIXED_PRECISION", "bf16"},
      {"ACCELERATE_USE_CPU", "True"},
      {"CUDA_VISIBLE_DEVICES", "2,3"},
      {"MASTER_ADDR", "node0"},
      {"ACCELERATE_DEBUG_MODE", ""},
      {"OMP_NUM_THREADS", "4,2"},
  }));
  EXPECT_THAT(
      layer,
      ElementsAre(
          Key("cpu"),
          Key("gpu_ids"),
          Key("main_process_ip"),
          Key("mixed_precision")));
  EXPECT_EQ(layer.at("cpu").location, "ACCELERATE_USE_CPU");
}

TEST(WorkerVariables, AreOnlyWhatTheConfigurationDecides) {
  EXPECT_THAT(
      worker_variables({}),
      ElementsAre(
          Pair("ACCELERATE_MIXED_PRECISION", "no"),
          Pair("ACCELERATE_USE_CPU", "False")));
}

TEST(WorkerVariables, HaveTheOriginalsNamesAndValues) {
  EXPECT_THAT(
      worker_variables({
          .cpu = true,
          .mixed_precision = "bf16",
          .gpu_ids = {"0", "GPU-1"},
          .num_cpu_threads_per_process = 3,
          .enable_cpu_affinity = true,
          .debug = true,
          .gradient_accumulation_steps = 8,
          .fast = true,
      }),
      ElementsAre(
          Pair("ACCELERATE_CPU_AFFINITY", "1"),
          Pair("ACCELERATE_DEBUG_MODE", "1"),
          Pair("ACCELERATE_FAST", "1"),
          Pair("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"),
          Pair("ACCELERATE_MIXED_PRECISION", "bf16"),
          Pair("ACCELERATE_USE_CPU", "True"),
          Pair("CUDA_VISIBLE_DEVICES", "0,GPU-1"),
          Pair("OMP_NUM_THREADS", "3")));
}

// "False" is not the same as nothing: torch then guesses which sizes vary.
TEST(WorkerVariables, SayOfCompilationWhatTheOriginalsDo) {
  const auto compiling = [](const LaunchConfig& config) {
    auto found = worker_variables(config);
    std::erase_if(found, [](const auto& variable) {
      return !variable.first.starts_with("ACCELERATE_DYNAMO_");
    });
    return found;
  };
  EXPECT_THAT(compiling({}), IsEmpty());
  EXPECT_THAT(
      compiling({.dynamo_backend = "inductor", .dynamo_use_fullgraph = true}),
      UnorderedElementsAre(
          Pair("ACCELERATE_DYNAMO_BACKEND", "inductor"),
          Pair("ACCELERATE_DYNAMO_USE_DYNAMIC", "False"),
          Pair("ACCELERATE_DYNAMO_USE_FULLGRAPH", "1")));
  EXPECT_THAT(
      compiling({.dynamo_mode = "max-autotune", .dynamo_use_dynamic = true}),
      UnorderedElementsAre(
          Pair("ACCELERATE_DYNAMO_MODE", "max-autotune"),
          Pair("ACCELERATE_DYNAMO_USE_DYNAMIC", "True")));
}

TEST(DefaultConfigPath, FollowsTheOriginalsFolders) {
  const auto path = [](std::map<std::string, std::string> values) {
    return default_config_path(lookup(std::move(values))).string();
  };
  const std::string file = "/accelerate/default_config.yaml";
  EXPECT_EQ(path({{"HOME", "/h"}}), "/h/.cache/huggingface" + file);
  EXPECT_EQ(
      path({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}),
      "/x/huggingface" + file);
  EXPECT_EQ(
      path({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/f"}}),
      "/f" + file);
  EXPECT_EQ(path({{"HOME", "/h"}, {"HF_HOME", "~/f"}}), "/h/f" + file);
  EXPECT_EQ(
      path({{"HOME", "/h"}, {"HF_HOME", ""}}), "/h/.cache/huggingface" + file);
}

TEST(DefaultConfigPath, IsTheJsonFileIfOnlyThatExists) {
  const testing::TempDir folder;
  std::filesystem::create_directories(folder.path() / "accelerate");
  const auto env = lookup({{"HF_HOME", folder.path().string()}});
  folder.write("accelerate/default_config.json", "{}");
  EXPECT_EQ(default_config_path(env).filename(), "default_config.json");
  folder.write("accelerate/default_config.yaml", "");
  EXPECT_EQ(default_config_path(env).filename(), "default_config.yaml");
}

} // namespace
} // namespace accelerate
