// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data_loader.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Indices = std::vector<int64_t>;
using Batches = std::vector<Indices>;

struct ShardCase {
  int64_t size;
  DataLoaderOptions options;
  /// Expected batches of rank 0 and rank 1 of two, worked out by hand from
  /// Hugging Face's rules: whole batches in turn; with even batches, the first
  /// round is dealt out again until every rank has as many full ones.
  std::vector<Batches> expected;
};

class Shard : public ::testing::TestWithParam<ShardCase> {};

TEST_P(Shard, DealsWholeBatchesToRanksInTurn) {
  const auto& [size, options, expected] = GetParam();
  const auto order = epoch_order(size, options, 0, 0);
  for (int rank = 0; rank < 2; ++rank) {
    Batches batches;
    for (int64_t i = 0; i < num_batches(size, options, {rank, 2}); ++i) {
      batches.push_back(batch_indices(order, options, {rank, 2}, i));
    }
    EXPECT_EQ(batches, expected[static_cast<size_t>(rank)]) << "rank " << rank;
  }
}

const ShardCase kShardCases[] = {
    {8, {.batch_size = 2}, {{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}},
    {7, {.batch_size = 2}, {{{0, 1}, {4, 5}}, {{2, 3}, {6, 0}}}},
    {5, {.batch_size = 2}, {{{0, 1}, {4, 0}}, {{2, 3}, {1, 2}}}},
    {1, {.batch_size = 2}, {{{0, 0}}, {{0, 0}}}},
    {0, {.batch_size = 2}, {{}, {}}},
    {7, {.batch_size = 2, .drop_last = true}, {{{0, 1}}, {{2, 3}}}},
    {7,
     {.batch_size = 2, .even_batches = false},
     {{{0, 1}, {4, 5}}, {{2, 3}, {6}}}},
    {5, {.batch_size = 2, .even_batches = false}, {{{0, 1}, {4}}, {{2, 3}}}},
};
INSTANTIATE_TEST_SUITE_P(Tables, Shard, ::testing::ValuesIn(kShardCases));

TEST(EpochOrder, DependsOnSeedAndEpochAlone) {
  const DataLoaderOptions shuffled{.shuffle = true};
  const auto order = epoch_order(100, shuffled, 7, 0);
  EXPECT_EQ(order, epoch_order(100, shuffled, 7, 0));
  EXPECT_NE(order, epoch_order(100, shuffled, 7, 1));
  EXPECT_NE(order, epoch_order(100, shuffled, 8, 0));
  EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 100U);
  // As torch.randperm(5, generator=torch.Generator().manual_seed(42)).
  EXPECT_EQ(epoch_order(5, shuffled, 42, 0), (Indices{2, 4, 3, 0, 1}));
}

TensorDataset numbers(int64_t size) {
  return TensorDataset({torch::arange(size), torch::arange(size) * 10});
}

TEST(DataLoader, GivesAllSamplesInOrderByItself) {
  DataLoader loader(numbers(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  std::vector<int64_t> seen;
  for (auto& batch : loader) {
    EXPECT_TRUE((batch[0] * 10).equal(batch[1]));
    for (int64_t i = 0; i < batch[0].size(0); ++i) {
      seen.push_back(batch[0][i].item<int64_t>());
    }
  }
  EXPECT_EQ(seen, (Indices{0, 1, 2, 3, 4}));
}

TEST(DataLoader, ReshufflesEveryEpochAndRepeatsAnEpochOnRequest) {
  DataLoader loader(
      numbers(50), {.batch_size = 50, .shuffle = true, .seed = 1});
  const auto epoch = [&] { return (*loader.begin())[0]; };
  const auto first = epoch();
  EXPECT_FALSE(epoch().equal(first));
  loader.set_epoch(0);
  EXPECT_TRUE(epoch().equal(first));
}

struct Point {
  torch::Tensor x;
  torch::Tensor y;
};
auto tensor_fields(Point& p) {
  return std::tie(p.x, p.y);
}

struct Line {
  size_t size() const { return 4; }
  Point get(int64_t i) const { return {torch::full({2}, i), torch::tensor(i)}; }
};

TEST(DataLoader, StacksTheSamplesOfAUsersOwnDataSet) {
  DataLoader loader(Line{}, {.batch_size = 4});
  Point batch = *loader.begin();
  EXPECT_EQ(batch.x.sizes(), (torch::IntArrayRef{4, 2}));
  EXPECT_TRUE(batch.y.equal(torch::arange(4)));
}

TEST(DataLoader, RefusesBadInput) {
  EXPECT_THAT(
      [] { DataLoader(numbers(2), {.batch_size = 0}); },
      ThrowsMessage<UsageError>(HasSubstr("batch_size 0")));
  EXPECT_THAT(
      [] {
        TensorDataset({torch::zeros(2), torch::zeros(3)});
      },
      ThrowsMessage<UsageError>(HasSubstr("column 1")));
  EXPECT_THROW(TensorDataset({}), UsageError);
}

} // namespace
} // namespace accelerate
