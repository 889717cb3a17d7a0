// SPDX-License-Identifier: Apache-2.0
// Which parts of a model a plan of tensor parallelism divides.
#include "core/layout/tensor_splits.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using enum TensorSplit;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TensorSplits, MatchPathsPartByPart) {
  EXPECT_TRUE(fits_pattern("h.*.mlp", "h.12.mlp"));
  EXPECT_TRUE(fits_pattern("", ""));
  for (const char* other :
       {"h.mlp", "h.1.2.mlp", "h.1.mlp.up", "g.1.mlp", ""}) {
    EXPECT_FALSE(fits_pattern("h.*.mlp", other)) << other;
  }
}

TEST(TensorSplits, DivideOutputsInputsAndRows) {
  const auto splits = tensor_splits(
      {{.modules = "up", .split = kColumns},
       {.modules = "down", .split = kRows},
       {.modules = "fused",
        .split = kColumns,
        .num_units = 2,
        .num_fused = 3,
        .is_transposed = true},
       {.modules = "words", .split = kVocabulary}},
      {{"up.weight", {8, 4}},
       {"up.bias", {8}},
       {"down.weight", {4, 8}},
       {"down.bias", {4}},
       {"fused.weight", {4, 12}},
       {"fused.bias", {12}},
       {"words.weight", {5, 4}},
       {"norm.weight", {4}}},
      2);
  EXPECT_EQ(splits[0]->shard.dim, 0);
  EXPECT_FALSE(splits[0]->divides_inputs);
  EXPECT_EQ(splits[1]->shard.dim, 0);
  EXPECT_EQ(splits[2]->shard.dim, 1);
  EXPECT_TRUE(splits[2]->divides_inputs);
  EXPECT_FALSE(splits[3]); // added once to the sum
  EXPECT_EQ(splits[4]->shard.dim, 1);
  EXPECT_EQ(splits[4]->shard.blocks, (std::vector<std::int64_t>{4, 4, 4}));
  EXPECT_EQ(splits[5]->shard.blocks, (std::vector<std::int64_t>{4, 4, 4}));
  EXPECT_EQ(splits[6]->shard.dim, 0);
  EXPECT_FALSE(splits[7]);
}

TEST(TensorSplits, SayWhatCannotBeDivided) {
  const auto expect_refused = [](const TensorPlan& plan,
                                 const NamedShape& parameter,
                                 int num_ranks,
                                 const char* why) {
    EXPECT_THAT(
        [&] { tensor_splits(plan, {parameter}, num_ranks); },
        ThrowsMessage<ConfigError>(HasSubstr(why)));
  };
  const NamedShape weight = {"a.weight", {6, 4}};
  expect_refused({}, weight, 2, "has no tensor plan");
  expect_refused({{"b"}}, weight, 2, "No parameter belongs to a module 'b'");
  expect_refused(
      {{"a", kColumns, 3}},
      weight,
      2,
      "'a.weight' has 3 heads, which cannot be divided equally among 2");
  expect_refused(
      {{"a", kColumns, 4}}, weight, 2, "cannot be split into 4 equal units");
  expect_refused(
      {{"a", kColumns, 0, 4}},
      weight,
      2,
      "cannot be split into 4 equal projections");
  expect_refused({{"a"}}, weight, 4, "cannot be divided equally among 4");
  expect_refused(
      {{"a", kVocabulary}}, {"a.weight", {5, 4}}, 4, "cannot be divided among");
  expect_refused({{"a"}}, {"a.weight", {4, 4, 3}}, 2, "has 3 dimensions");
  for (const auto split : {kColumns, kGatheredColumns, kRows, kVocabulary}) {
    expect_refused(
        {{"norm", split}}, {"norm.weight", {4}}, 2, "has 1 dimension");
  }
  expect_refused(
      {{"a", kRows}, {"*", kRows}},
      weight,
      2,
      "Earlier entries of the tensor plan fit all modules '*'");
  expect_refused({{"a"}}, weight, 2, "kColumns but no kRows");
  expect_refused(
      {{.modules = "a", .split = kRows, .is_transposed = true}},
      {.name = "a.weight", .shape = {6, 4}, .is_linear = true},
      2,
      "Remove is_transposed");
  expect_refused(
      {{"a"}},
      {.name = "a.weight", .shape = {6, 4}, .is_embedding = true},
      2,
      "Use kVocabulary");
}

} // namespace
} // namespace accelerate
