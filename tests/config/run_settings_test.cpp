// SPDX-License-Identifier: Apache-2.0
#include "core/config/run_settings.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "core/config/env_bridge.h"
#include "support/variables.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::lookup;
using ::testing::ThrowsMessage;
using testing::Variables;

TEST(RunSettings, UseTheDefaults) {
  const RunSettings settings(lookup({{"ACCELERATE_USE_CPU", ""}}));
  EXPECT_FALSE(settings.cpu({}));
  EXPECT_FALSE(settings.debug({}));
  EXPECT_EQ(settings.mixed_precision({}), Precision::kNo);
  EXPECT_EQ(settings.gradient_accumulation_steps({}), 1);
}

TEST(RunSettings, UseVariablesIfTheCodeSetsNothing) {
  const RunSettings settings(lookup({
      {"ACCELERATE_USE_CPU", "True"},
      {"ACCELERATE_DEBUG_MODE", "1"},
      {"ACCELERATE_MIXED_PRECISION", "bf16"},
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"},
  }));
  EXPECT_TRUE(settings.cpu({}));
  EXPECT_TRUE(settings.debug({}));
  EXPECT_EQ(settings.mixed_precision({}), Precision::kBf16);
  EXPECT_EQ(settings.gradient_accumulation_steps({}), 8);
}

TEST(RunSettings, PreferValuesInCodeWithoutParsingVariables) {
  const RunSettings settings(lookup({
      {"ACCELERATE_USE_CPU", "True"},
      {"ACCELERATE_DEBUG_MODE", "maybe"},
      {"ACCELERATE_MIXED_PRECISION", "fp8"},
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"},
  }));
  EXPECT_FALSE(settings.cpu(false));
  EXPECT_FALSE(settings.debug(false));
  EXPECT_EQ(settings.mixed_precision(Precision::kNo), Precision::kNo);
  EXPECT_EQ(settings.gradient_accumulation_steps(1), 1);
}

TEST(RunSettings, RefuseMalformedVariablesByName) {
  const auto complaint = [](const char* variable, const char* value) {
    return ThrowsMessage<ConfigError>(AllOf(
        HasSubstr(std::string(variable) + " must be "),
        HasSubstr(std::string("not '") + value + "'")));
  };
  const auto settings = [](const char* variable, const char* value) {
    return RunSettings(lookup({{variable, value}}));
  };
  EXPECT_THAT(
      [&] { settings("ACCELERATE_USE_CPU", "perhaps").cpu({}); },
      complaint("ACCELERATE_USE_CPU", "perhaps"));
  EXPECT_THAT(
      [&] { settings("ACCELERATE_DEBUG_MODE", "2").debug({}); },
      complaint("ACCELERATE_DEBUG_MODE", "2"));
  EXPECT_THAT(
      [&] {
        settings("ACCELERATE_MIXED_PRECISION", "fp8").mixed_precision({});
      },
      complaint("ACCELERATE_MIXED_PRECISION", "fp8"));
  for (const char* text : {"0", "two", "-1"}) {
    EXPECT_THAT(
        [&] {
          settings("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", text)
              .gradient_accumulation_steps({});
        },
        complaint("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", text));
  }
}

TEST(RunSettings, ReadReplicasAndShardsIfTheyAreEnabled) {
  const auto sizes = [](Variables values, const MeshSizes& code = {}) {
    return RunSettings(lookup(std::move(values))).parallelism(code);
  };
  const Variables both = {
      {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
      {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2"},
      {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "4"}};
  EXPECT_EQ(sizes(both), (MeshSizes{.replicate = 2, .shard = 4}));
  EXPECT_EQ(sizes(both, {.replicate = 8}), MeshSizes{.replicate = 8});
  Variables divided = both;
  divided["PARALLELISM_CONFIG_TP_SIZE"] = "2";
  EXPECT_EQ(
      sizes(divided), (MeshSizes{.replicate = 2, .shard = 4, .tensor = 2}));
  Variables one = both;
  one.erase("PARALLELISM_CONFIG_DP_SHARD_SIZE");
  EXPECT_EQ(sizes(one), (MeshSizes{.replicate = 2, .shard = 1}));
  Variables none = both;
  none.erase("ACCELERATE_USE_PARALLELISM_CONFIG");
  EXPECT_EQ(sizes(none), MeshSizes());
  EXPECT_EQ(
      sizes({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}}), MeshSizes());
  one["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] = "two";
  EXPECT_THAT(
      [&] { sizes(one); },
      ThrowsMessage<ConfigError>(
          HasSubstr("PARALLELISM_CONFIG_DP_REPLICATE_SIZE")));
}

TEST(RunSettings, UnderstandWhatTheLauncherWrites) {
  const RunSettings settings(lookup(worker_variables({
      .cpu = true,
      .mixed_precision = "bf16",
      .debug = true,
      .gradient_accumulation_steps = 4,
      .use_parallelism_config = true,
      .parallelism_config_dp_replicate_size = 2,
      .parallelism_config_dp_shard_size = 3,
  })));
  EXPECT_EQ(settings.parallelism({}), (MeshSizes{.replicate = 2, .shard = 3}));
  EXPECT_TRUE(settings.cpu({}));
  EXPECT_TRUE(settings.debug({}));
  EXPECT_EQ(settings.mixed_precision({}), Precision::kBf16);
  EXPECT_EQ(settings.gradient_accumulation_steps({}), 4);
}

TEST(PrecisionNames, RoundTrip) {
  for (const PrecisionName& row : precision_names()) {
    EXPECT_EQ(parse_precision(row.name), row.precision);
    EXPECT_EQ(find_precision(row.precision).name, row.name);
  }
  EXPECT_EQ(find_precision("fp8"), nullptr);
  EXPECT_THAT(
      [] { parse_precision("half"); },
      ThrowsMessage<ConfigError>(
          "[mixed_precision] must be no, fp16 or bf16, not 'half'"));
}

} // namespace
} // namespace accelerate
