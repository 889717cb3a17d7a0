// SPDX-License-Identifier: Apache-2.0
// Which elements a layout gives each rank, against an index-by-index oracle.
#include "core/layout/tensor_layout.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <random>

#include "accelerate/error.h"
#include "core/layout/tensor_shape.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using enum MeshDimension;
using Numbers = std::vector<std::int64_t>;

/// The index in the tensor of each element of the pieces, in their order.
std::vector<Numbers> indices_of(const TensorPieces& pieces) {
  std::vector<Numbers> indices;
  for (const auto& [box, begin, count] : pieces) {
    for (auto at = begin; at < begin + count; ++at) {
      Numbers index = box.begin;
      auto rest = at;
      for (std::size_t i = index.size(); i-- > 0;) {
        index[i] += rest % box.size[i];
        rest /= box.size[i];
      }
      indices.push_back(index);
    }
  }
  return indices;
}

std::vector<Numbers> all_of(const Numbers& shape) {
  return indices_of(
      {{{Numbers(shape.size(), 0), shape}, 0, *elements_of(shape)}});
}

/// Where `at` of a block of `length` is: the part, as `torch.chunk` counts.
std::int64_t part_of(std::int64_t at, std::int64_t length, int num_shards) {
  return at / ((length + num_shards - 1) / num_shards);
}

TEST(TensorLayout, IsTheWholeTensorOnEveryRankByDefault) {
  const MeshShape mesh({.pipeline = 2, .replicate = 2}, 4);
  const TensorLayout layout;
  EXPECT_FALSE(layout.is_divided());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(pieces_of({2, 3}, layout, mesh, rank), flat_range({2, 3}, 0, 6));
    EXPECT_EQ(pieces_of({}, layout, mesh, rank), flat_range({}, 0, 1));
    EXPECT_THAT(pieces_of({0, 3}, layout, mesh, rank), IsEmpty());
  }
}

TEST(TensorLayout, IsOnItsStagesAlone) {
  const MeshShape mesh({.pipeline = 3, .replicate = 2}, 6);
  const TensorLayout layout = {.stages = {0, 2}};
  for (int rank = 0; rank < 6; ++rank) {
    const bool has = rank / 2 != 1;
    EXPECT_EQ(
        pieces_of({4}, layout, mesh, rank),
        has ? flat_range({4}, 0, 4) : TensorPieces());
  }
}

// The tensor begins at 6 in a buffer of 4 shares of 4.
TEST(TensorLayout, GivesRanksDifferentNumbersOfElementsOfAFlatShard) {
  const MeshShape mesh({.shard = 4}, 4);
  const TensorLayout layout = {
      .placements = {{kShard, FlatShard{.offset = 6, .share = 4}}}};
  EXPECT_EQ(layout.divided_along(), kShard);
  const auto pieces = [&](int rank) {
    return pieces_of({3, 3}, layout, mesh, rank);
  };
  EXPECT_THAT(pieces(0), IsEmpty());
  EXPECT_EQ(pieces(1), flat_range({3, 3}, 0, 2));
  EXPECT_EQ(pieces(2), flat_range({3, 3}, 2, 4));
  EXPECT_EQ(pieces(3), flat_range({3, 3}, 6, 3));
}

// Rows of q, k and v, as GPT-2 fuses them; then ZeRO over what each rank has.
TEST(TensorLayout, CutsEveryBlockAndThenARangeOfTheParts) {
  const MeshShape mesh({.shard = 2, .tensor = 2}, 4);
  TensorLayout layout = {
      .placements = {{kTensor, DimShard{.dim = 0, .blocks = {4, 4, 4}}}}};
  const TensorBox q = {{2, 0}, {2, 5}};
  const TensorBox k = {{6, 0}, {2, 5}};
  const TensorBox v = {{10, 0}, {2, 5}};
  EXPECT_THAT(
      pieces_of({12, 5}, layout, mesh, 1),
      ElementsAre(
          TensorPiece{q, 0, 10}, TensorPiece{k, 0, 10}, TensorPiece{v, 0, 10}));
  layout.placements.push_back({kShard, FlatShard{.offset = 0, .share = 16}});
  EXPECT_EQ(layout.divided_along(), kShard | kTensor);
  EXPECT_THAT(
      pieces_of({12, 5}, layout, mesh, 1),
      ElementsAre(TensorPiece{q, 0, 10}, TensorPiece{k, 0, 6}));
  EXPECT_THAT(
      pieces_of({12, 5}, layout, mesh, 3),
      ElementsAre(TensorPiece{k, 6, 4}, TensorPiece{v, 0, 10}));
}

TEST(TensorLayout, OfAPartialSumIsWholeOnEveryRank) {
  const MeshShape mesh({.tensor = 2}, 2);
  const TensorLayout layout = {.placements = {{kTensor, Partial{}}}};
  EXPECT_FALSE(layout.is_divided());
  EXPECT_EQ(pieces_of({3}, layout, mesh, 1), flat_range({3}, 0, 3));
}

// The oracle asks of each index whether it is the rank's.
TEST(TensorLayout, GivesTheElementsThatAnIndexByIndexOracleGives) {
  std::mt19937 random(11);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const MeshSizes sizes = {
        .pipeline = draw(1, 2),
        .replicate = draw(1, 2),
        .shard = draw(1, 3),
        .context = draw(1, 2),
        .sequence = 1,
        .tensor = draw(1, 3)};
    const int num_ranks = sizes.pipeline * sizes.replicate * sizes.shard *
                          sizes.context * sizes.tensor;
    const MeshShape mesh(sizes, num_ranks);
    Numbers shape(static_cast<std::size_t>(draw(1, 3)));
    for (auto& length : shape) {
      length = draw(0, 6);
    }
    TensorLayout layout;
    if (draw(0, 1) == 1) {
      layout.stages = {0};
    }
    // Of each element: the coordinate that has it.
    std::vector<std::pair<MeshDimension, std::function<int(const Numbers&)>>>
        owner;
    if (draw(0, 1) == 1) {
      const auto dim = static_cast<std::size_t>(draw(0, int(shape.size()) - 1));
      const auto first = draw(0, int(shape[dim]));
      layout.placements.push_back(
          {kTensor,
           DimShard{
               static_cast<std::int64_t>(dim), {first, shape[dim] - first}}});
      owner.emplace_back(kTensor, [=](const Numbers& index) {
        const auto at = index[dim];
        return static_cast<int>(
            at < first ? part_of(at, first, sizes.tensor)
                       : part_of(at - first, shape[dim] - first, sizes.tensor));
      });
    }
    if (draw(0, 1) == 1) {
      const auto dim = shape.size() - 1;
      const bool is_cut =
          !owner.empty() && std::get<DimShard>(layout.placements[0].how).dim ==
                                static_cast<std::int64_t>(dim);
      if (!is_cut) {
        layout.placements.push_back(
            {kContext, DimShard{static_cast<std::int64_t>(dim), {}}});
        owner.emplace_back(kContext, [=](const Numbers& index) {
          return static_cast<int>(
              part_of(index[dim], shape[dim], sizes.context));
        });
      }
    }
    const bool is_flat = draw(0, 1) == 1;
    const auto joined = draw(0, 1) == 1 ? kData : kShard;
    const std::int64_t offset = draw(0, 9);
    const std::int64_t share =
        (*elements_of(shape) + offset) / mesh.size(joined) + draw(1, 3);
    if (is_flat) {
      layout.placements.push_back({joined, FlatShard{offset, share}});
    }
    const auto all = all_of(shape);
    for (int rank = 0; rank < num_ranks; ++rank) {
      // In the order of the tensor, which is that of one block of rows.
      std::vector<Numbers> expected;
      for (const auto& index : all) {
        bool is_mine =
            layout.stages.empty() || mesh.coordinate(rank, kPipeline) == 0;
        for (const auto& [along, of] : owner) {
          is_mine = is_mine && of(index) == mesh.coordinate(rank, along);
        }
        if (is_mine) {
          expected.push_back(index);
        }
      }
      if (!layout.placements.empty() &&
          std::holds_alternative<DimShard>(layout.placements[0].how) &&
          layout.placements[0].along == kTensor) {
        // One block after the other.
        const auto& how = std::get<DimShard>(layout.placements[0].how);
        std::stable_partition(
            expected.begin(), expected.end(), [&](const Numbers& index) {
              return index[static_cast<std::size_t>(how.dim)] < how.blocks[0];
            });
      }
      if (is_flat) {
        std::vector<Numbers> range;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if ((offset + static_cast<std::int64_t>(i)) / share ==
              mesh.coordinate(rank, joined)) {
            range.push_back(expected[i]);
          }
        }
        expected = range;
      }
      const auto pieces = pieces_of(shape, layout, mesh, rank);
      ASSERT_NO_THROW(check_pieces(shape, pieces));
      ASSERT_EQ(indices_of(pieces), expected) << "round " << round;
    }
  }
}

// Along what a layout divides, ranks have every element exactly once.
TEST(TensorLayout, SaysAlongWhichRanksASumCountsEveryElementOnce) {
  const MeshShape mesh(
      {.replicate = 2, .shard = 3, .context = 2, .tensor = 2}, 24);
  const TensorLayout layout = {
      .placements = {
          {kTensor, DimShard{.dim = 1}},
          {kShard, FlatShard{.offset = 5, .share = 9}}}};
  const Numbers shape = {6, 5};
  for (int rank = 0; rank < 24; ++rank) {
    std::map<Numbers, int> count;
    for (const int other : mesh.ranks(rank, layout.divided_along())) {
      for (const auto& index :
           indices_of(pieces_of(shape, layout, mesh, other))) {
        ++count[index];
      }
    }
    EXPECT_EQ(count.size(), 30U);
    for (const auto& [index, times] : count) {
      EXPECT_EQ(times, 1);
    }
  }
}

TEST(TensorLayout, ThatDoesNotFitIsRefused) {
  const MeshShape mesh({.shard = 2, .tensor = 2}, 4);
  const auto refuses = [&](const std::vector<TensorPlacement>& placements,
                           const char* text) {
    EXPECT_THAT(
        [&] {
          pieces_of({4, 6}, {.placements = placements}, mesh, 0);
        },
        ThrowsMessage<UsageError>(HasSubstr(text)));
  };
  refuses({{kTensor, DimShard{.dim = 2}}}, "has no dimension 2");
  refuses({{kTensor, DimShard{.dim = -1}}}, "has no dimension -1");
  refuses({{kTensor, DimShard{0, {3, 2}}}}, "length of 5 do not divide");
  refuses({{kTensor, DimShard{0, {5, -1}}}}, "do not divide");
  refuses(
      {{kShard, FlatShard{1, 12}}},
      "2 shards of 12 elements cannot hold 24 elements from position 1");
  refuses({{kShard, FlatShard{-1, 40}}}, "from position -1");
  refuses(
      {{kShard, FlatShard{0, 12}}, {kTensor, DimShard{0, {}}}},
      "must be the last");
  refuses(
      {{kShard, DimShard{0, {}}}, {kData, FlatShard{0, 12}}},
      "the same dimension");
}

} // namespace
} // namespace accelerate
