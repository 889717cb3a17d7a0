// SPDX-License-Identifier: Apache-2.0
// The process groups of a mesh. Which rank is where is in mesh_shape_test.cpp.
#include "accelerate/distributed/mesh.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using enum MeshDimension;

std::vector<int64_t> members(const ProcessGroup& group, int own) {
  const auto all = group.all_gather(torch::full({1}, own, torch::kLong));
  const auto* first = all.data_ptr<int64_t>();
  return {first, first + all.numel()};
}

using Ranks = std::vector<int64_t>;

TEST(Mesh, HasAGroupAlongEveryDimension) {
  run_ranks(6, [](ProcessGroup group) {
    const Mesh mesh(group, {.replicate = 2, .shard = 3});
    const int rank = group.rank();
    EXPECT_EQ(mesh.size(kReplicate), 2);
    EXPECT_EQ(mesh.size(kShard), 3);
    EXPECT_EQ(mesh.coordinate(kReplicate), rank < 3 ? 0 : 1);
    EXPECT_EQ(mesh.coordinate(kShard), rank % 3);
    const Ranks columns[] = {{0, 3}, {1, 4}, {2, 5}};
    EXPECT_EQ(members(mesh.group(kReplicate), rank), columns[rank % 3]);
    EXPECT_EQ(
        members(mesh.group(kShard), rank),
        rank < 3 ? (Ranks{0, 1, 2}) : (Ranks{3, 4, 5}));
    // All of them see different data.
    EXPECT_EQ(mesh.group(kData).impl(), group.impl());
    EXPECT_EQ(mesh.group().impl(), group.impl());
  });
}

TEST(Mesh, HasTheSameDataAlongOtherDimensions) {
  run_ranks(8, [](ProcessGroup group) {
    const Mesh mesh(group, {.replicate = 2, .shard = 2, .tensor = 2});
    const int rank = group.rank();
    const bool second = rank % 2 == 1;
    EXPECT_EQ(
        members(mesh.group(kData), rank),
        second ? (Ranks{1, 3, 5, 7}) : (Ranks{0, 2, 4, 6}));
    EXPECT_EQ(mesh.group(kData).rank(), rank / 2);
    EXPECT_EQ(mesh.coordinate(kData), rank / 2);
    EXPECT_EQ(
        members(mesh.group(kTensor), rank),
        (Ranks{second ? rank - 1 : rank, second ? rank : rank + 1}));
  });
}

TEST(Mesh, HasOneRankAlongDimensionsOfSizeOne) {
  run_ranks(2, [](ProcessGroup group) {
    const Mesh mesh(group, {.tensor = 2});
    EXPECT_EQ(mesh.size(kContext), 1);
    EXPECT_EQ(mesh.coordinate(kContext), 0);
    EXPECT_TRUE(mesh.group(kContext).is_solo());
    EXPECT_TRUE(mesh.group(kShard).is_solo());
    // Both ranks see the same data.
    EXPECT_EQ(mesh.group(kData).world_size(), 1);
  });
}

TEST(Mesh, IsOneRankByItself) {
  const Mesh mesh;
  EXPECT_EQ(mesh.shape(), MeshShape());
  EXPECT_TRUE(mesh.group(kData).is_solo());
  EXPECT_THAT(
      [&] { mesh.group(kShard | kTensor); },
      ThrowsMessage<UsageError>(HasSubstr("have no process group")));
}

TEST(Mesh, OfReplicasAloneDoesNotCommunicate) {
  run_ranks(2, [](ProcessGroup group) {
    if (group.rank() == 0) {
      EXPECT_EQ(Mesh(group, {}).size(kReplicate), 2);
      EXPECT_EQ(Mesh(group, {.replicate = 2, .shard = 1}).size(kData), 2);
    }
  });
}

TEST(Mesh, ThatDoesNotFitIsAnErrorOnAllRanks) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] { Mesh(group, {.replicate = 2, .shard = 3}); },
        ThrowsMessage<ConfigError>(HasSubstr("needs 6 ranks")));
  });
}

TEST(Mesh, ThrowsOnAllRanksIfSizesDiffer) {
  const std::pair<MeshSizes, MeshSizes> different[] = {
      {{.shard = 2}, {.tensor = 2}},
      {{.shard = 2}, {.replicate = 1, .shard = 1, .tensor = 2}},
      {{.shard = 2}, {.shard = 3}}};
  run_ranks(2, [&](ProcessGroup group) {
    for (const auto& [first, second] : different) {
      EXPECT_THAT(
          [&] { Mesh(group, group.rank() == 0 ? first : second); },
          ThrowsMessage<MismatchError>(AllOf(
              HasSubstr("Mesh() was called with"), HasSubstr("shard 2"))));
    }
    group.barrier();
  });
}

} // namespace
} // namespace accelerate
