// SPDX-License-Identifier: Apache-2.0
#include "core/sizing/model_sizes.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "sizing/small_llama.h"

namespace accelerate::testing {
namespace {

using safetensors::Dtype;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// 70 elements, and 4 frequencies that are stored twice: (70 + 8) * 4 = 312
// bytes.
TEST(ModelSizes, CountInFloat32WhateverTheFileHolds) {
  for (const auto& [dtype, element] :
       {std::pair{Dtype::kF32, 4}, {Dtype::kBF16, 2}, {Dtype::kF64, 8}}) {
    TempDir folder;
    const auto sizes = measure_model(
        write_llama(folder, dtype, static_cast<std::size_t>(element)));
    EXPECT_TRUE(sizes.is_known);
    EXPECT_EQ(sizes.model_type, "llama");
    EXPECT_EQ(sizes.total_bytes, 312);
    EXPECT_EQ(sizes.largest_layer_bytes, 96);
    EXPECT_THAT(
        sizes.largest_layers, ElementsAre("model.layers.0", "model.layers.1"));
  }
}

TEST(ModelSizes, EstimateEachDtype) {
  TempDir folder;
  const auto sizes = measure_model(write_llama(folder, Dtype::kF32, 4));
  EXPECT_EQ(estimate_memory(sizes, "float32").total_bytes, 312);
  EXPECT_EQ(estimate_memory(sizes, "float32").largest_layer_bytes, 96);
  EXPECT_EQ(estimate_memory(sizes, "float32").training_bytes, 4 * 312);
  EXPECT_EQ(estimate_memory(sizes, "float16").total_bytes, 156);
  EXPECT_EQ(estimate_memory(sizes, "float16").training_bytes, 2 * 312);
  EXPECT_EQ(estimate_memory(sizes, "int8").total_bytes, 78);
  EXPECT_EQ(estimate_memory(sizes, "int8").training_bytes, std::nullopt);
  EXPECT_EQ(estimate_memory(sizes, "int4").total_bytes, 39);
}

// Without its family, the rotary buffers are not known: 70 * 4 bytes.
TEST(ModelSizes, TakeNumberedModulesForBlocksOfUnknownModels) {
  TempDir folder;
  write_llama(folder, Dtype::kF32, 4);
  folder.write("config.json", R"({"model_type":"novel"})");
  const auto sizes = measure_model(folder.path());
  EXPECT_FALSE(sizes.is_known);
  EXPECT_EQ(sizes.total_bytes, 280);
  EXPECT_EQ(sizes.largest_layer_bytes, 96);
}

// docs/guide_sharding.md: P / N with N ranks of one copy, and U for a unit.
TEST(ModelSizes, AreDividedByTheRanksOfOneCopy) {
  const ModelSizes sizes = {.total_bytes = 800, .largest_unit_bytes = 10};
  const auto estimates =
      estimate_sharding(sizes, MeshShape({.replicate = 2, .shard = 4}, 8));
  EXPECT_EQ(estimates[0].stage, "DDP");
  EXPECT_EQ(estimates[0].total_bytes(), 4 * 800);
  EXPECT_EQ(estimates[3].stage, "3");
  EXPECT_EQ(estimates[3].parameter_bytes, 200 + 2 * 10);
  EXPECT_EQ(estimates[3].gradient_bytes, 200 + 3 * 10);
  EXPECT_EQ(estimates[3].optimizer_bytes, 2 * 200);
}

TEST(ModelSizes, RefuseAMalformedConfig) {
  TempDir folder;
  write_llama(folder, Dtype::kF32, 4);
  folder.write("config.json", "[");
  EXPECT_THAT(
      [&] { measure_model(folder.path()); },
      ThrowsMessage<ConfigError>(HasSubstr("is not a JSON object")));
}

} // namespace
} // namespace accelerate::testing
