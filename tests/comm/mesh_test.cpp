// SPDX-License-Identifier: Apache-2.0
// Ranks as a grid, against coordinates worked out by hand.
#include "accelerate/mesh.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

std::vector<int64_t> members(const ProcessGroup& group, int own) {
  const auto all = group.all_gather(torch::full({1}, own, torch::kLong));
  const auto* first = all.data_ptr<int64_t>();
  return {first, first + all.numel()};
}

using Ranks = std::vector<int64_t>;

TEST(Mesh, LaysRanksOutRowByRow) {
  run_ranks(6, [](ProcessGroup group) {
    const Mesh mesh(group, {{"replicate", 2}, {"shard", 3}});
    const int rank = group.rank();
    EXPECT_EQ(mesh.size("replicate"), 2);
    EXPECT_EQ(mesh.size("shard"), 3);
    EXPECT_EQ(mesh.coordinate("replicate"), rank < 3 ? 0 : 1);
    EXPECT_EQ(mesh.coordinate("shard"), rank % 3);
    const Ranks columns[] = {{0, 3}, {1, 4}, {2, 5}};
    EXPECT_EQ(members(mesh.group("replicate"), rank), columns[rank % 3]);
    EXPECT_EQ(
        members(mesh.group("shard"), rank),
        rank < 3 ? (Ranks{0, 1, 2}) : (Ranks{3, 4, 5}));
    // All of them see different data.
    EXPECT_EQ(mesh.data().impl(), group.impl());
    EXPECT_EQ(mesh.group().impl(), group.impl());
  });
}

TEST(Mesh, HasTheSameDataAlongOtherDimensions) {
  run_ranks(8, [](ProcessGroup group) {
    const Mesh mesh(group, {{"replicate", 2}, {"tensor", 2}, {"shard", 2}});
    const int rank = group.rank();
    // Ranks 0 1 | 2 3 and 4 5 | 6 7: pairs of one replica differ in `tensor`.
    const bool second = rank == 2 || rank == 3 || rank == 6 || rank == 7;
    EXPECT_EQ(
        members(mesh.data(), rank),
        second ? (Ranks{2, 3, 6, 7}) : (Ranks{0, 1, 4, 5}));
    EXPECT_EQ(mesh.data().world_size(), 4);
    const int expected[] = {0, 1, 0, 1, 2, 3, 2, 3};
    EXPECT_EQ(mesh.data().rank(), expected[rank]);
    EXPECT_EQ(mesh.coordinate("tensor"), second ? 1 : 0);
    EXPECT_EQ(
        members(mesh.group("tensor"), rank),
        (Ranks{second ? rank - 2 : rank, second ? rank : rank + 2}));
  });
}

TEST(Mesh, HasOneRankAlongMissingDimensions) {
  run_ranks(2, [](ProcessGroup group) {
    const Mesh mesh(group, {{"tensor", 2}, {"shard", 1}});
    EXPECT_EQ(mesh.size("context"), 1);
    EXPECT_EQ(mesh.coordinate("context"), 0);
    EXPECT_TRUE(mesh.group("context").is_solo());
    EXPECT_TRUE(mesh.group("shard").is_solo());
    // Both ranks see the same data.
    EXPECT_EQ(mesh.data().world_size(), 1);
  });
}

TEST(Mesh, IsOneRankByItself) {
  const Mesh mesh;
  EXPECT_EQ(mesh.dimensions(), (std::vector<MeshDimension>{{"replicate", 1}}));
  EXPECT_TRUE(mesh.data().is_solo());
}

struct WrongMesh {
  const char* name;
  std::vector<MeshDimension> dimensions;
  const char* text;
};

class RefusedMesh : public ::testing::TestWithParam<WrongMesh> {};
INSTANTIATE_TEST_SUITE_P(
    Dimensions,
    RefusedMesh,
    ::testing::Values(
        WrongMesh{"Product", {{"replicate", 2}, {"shard", 3}}, "must be 2"},
        WrongMesh{"Huge", {{"a", 1 << 30}, {"b", 1 << 30}}, "must be 2"},
        WrongMesh{
            "None",
            {},
            "A mesh without dimensions does not describe 2 ranks"},
        WrongMesh{"NoName", {{"", 2}}, "Give every dimension a name"},
        WrongMesh{"OneNameTwice", {{"a", 2}, {"a", 1}}, "its own name"},
        WrongMesh{"NoSize", {{"a", 2}, {"b", 0}}, "at least 1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RefusedMesh, IsAnErrorInOneLine) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] { Mesh(group, GetParam().dimensions); },
        ThrowsMessage<UsageError>(AllOf(
            HasSubstr("[Mesh] "),
            HasSubstr(GetParam().text),
            Not(HasSubstr("\n")))));
  });
}

TEST(Mesh, ThrowsOnAllRanksIfDimensionsDiffer) {
  using Dimensions = std::vector<MeshDimension>;
  const std::pair<Dimensions, Dimensions> different[] = {
      {{{"a", 2}}, {{"b", 2}}},
      {{{"a", 2}}, {{"a", 1}, {"b", 2}}},
      {{{"a", 2}}, {{"a", 3}}}};
  run_ranks(2, [&](ProcessGroup group) {
    for (const auto& [first, second] : different) {
      EXPECT_THAT(
          [&] { Mesh(group, group.rank() == 0 ? first : second); },
          ThrowsMessage<MismatchError>(AllOf(
              HasSubstr("Mesh() was called with"), HasSubstr("'a' of 2"))));
    }
    group.barrier();
  });
}

} // namespace
} // namespace accelerate
