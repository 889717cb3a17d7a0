// SPDX-License-Identifier: Apache-2.0
// Ranks as a grid, against coordinates worked out by hand.
#include "accelerate/distributed/mesh_shape.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

using enum MeshDimension;

TEST(MeshShape, PutsRanksOfTheLastDimensionNextToEachOther) {
  const MeshShape mesh({.replicate = 2, .shard = 3}, 6);
  EXPECT_EQ(mesh.num_ranks(), 6);
  EXPECT_EQ(mesh.size(kReplicate), 2);
  EXPECT_EQ(mesh.size(kShard), 3);
  EXPECT_EQ(mesh.size(kTensor), 1);
  EXPECT_EQ(mesh.coordinate(4, kReplicate), 1);
  EXPECT_EQ(mesh.coordinate(4, kShard), 1);
  EXPECT_EQ(mesh.coordinate(4, kTensor), 0);
  EXPECT_THAT(mesh.ranks(4, kReplicate), ElementsAre(1, 4));
  EXPECT_THAT(mesh.ranks(4, kShard), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.ranks(4, kTensor), ElementsAre(4));
}

// Ranks of a 2 x 2 x 2 x 2 mesh count in binary: one digit per dimension.
TEST(MeshShape, HasOneOrderOfDimensions) {
  const MeshShape mesh(
      {.pipeline = 2, .replicate = 2, .context = 2, .tensor = 2}, 16);
  for (int rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(mesh.coordinate(rank, kPipeline), rank / 8);
    EXPECT_EQ(mesh.coordinate(rank, kReplicate), rank / 4 % 2);
    EXPECT_EQ(mesh.coordinate(rank, kContext), rank / 2 % 2);
    EXPECT_EQ(mesh.coordinate(rank, kTensor), rank % 2);
  }
  EXPECT_THAT(mesh.ranks(5, kPipeline | kTensor), ElementsAre(4, 5, 12, 13));
  EXPECT_EQ(mesh.coordinate(13, kPipeline | kTensor), 3);
}

TEST(MeshShape, GivesRanksThatDifferInOtherDimensionsTheSameData) {
  const MeshShape mesh({.replicate = 2, .shard = 2, .tensor = 2}, 8);
  EXPECT_EQ(mesh.size(kData), 4);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(mesh.coordinate(rank, kData), rank / 2);
  }
  EXPECT_THAT(mesh.ranks(3, kData), ElementsAre(1, 3, 5, 7));
}

TEST(MeshShape, FillsZerosWithTheRanksThatOtherSizesLeave) {
  using Sizes = MeshSizes;
  const auto filled = [](const Sizes& sizes, int num_ranks) {
    return MeshShape(sizes, num_ranks).sizes();
  };
  EXPECT_EQ(filled({}, 8), (Sizes{.replicate = 8, .shard = 1}));
  EXPECT_EQ(filled({.shard = 4}, 8), (Sizes{.replicate = 2, .shard = 4}));
  EXPECT_EQ(filled({.replicate = 1}, 8), (Sizes{.replicate = 1, .shard = 8}));
  EXPECT_EQ(
      filled({.replicate = 2, .tensor = 2}, 8),
      (Sizes{.replicate = 2, .shard = 2, .tensor = 2}));
  EXPECT_EQ(MeshShape(), MeshShape({}, 1));
}

struct WrongMesh {
  const char* name;
  MeshSizes sizes;
  const char* text;
};

class RefusedMesh : public ::testing::TestWithParam<WrongMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Sizes,
    RefusedMesh,
    ::testing::Values(
        WrongMesh{
            "Product",
            {.replicate = 2, .shard = 3},
            "A mesh of replicate 2 x shard 3 needs 6 ranks, but there are 4"},
        WrongMesh{
            "Multiple",
            {.tensor = 3},
            "replicate any x tensor 3 needs a multiple of 3 ranks"},
        WrongMesh{
            "Huge",
            {.replicate = 1 << 30, .shard = 1 << 30},
            "needs 2147483648 ranks"},
        WrongMesh{
            "TooFew",
            {.replicate = 1, .shard = 1},
            "A mesh of 1 needs 1 rank, but there are 4"},
        WrongMesh{"Zero", {.tensor = 0}, "The size of tensor is 0"},
        WrongMesh{"Negative", {.shard = -1}, "The size of shard is -1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RefusedMesh, IsAnErrorInOneLine) {
  EXPECT_THAT(
      [] { MeshShape(GetParam().sizes, 4); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("[Mesh] "),
          HasSubstr(GetParam().text),
          Not(HasSubstr("\n")))));
}

} // namespace
} // namespace accelerate
