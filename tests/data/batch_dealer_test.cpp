// SPDX-License-Identifier: Apache-2.0
// The expected values are computed by hand; `test_loaders_of_two_processes.py`
// compares with the original.
#include "training/data/batch_dealer.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
/// First, number of samples, number of real ones.
using Slices = std::vector<std::vector<int64_t>>;

Slices slices_of(const BatchDealer::Turn& turn) {
  Slices slices;
  for (const auto& slice : turn.slices) {
    slices.push_back({slice.first, slice.num_samples, slice.num_real});
  }
  return slices;
}

TEST(BatchDealer, DealsOneBatchToEachRankAndPadsTheEnd) {
  BatchDealer dealer(/*split_batches=*/false, /*drop_last=*/false, 2);
  EXPECT_EQ(dealer.batches_per_turn(), 2);
  const auto first = dealer.deal({3, 3});
  EXPECT_TRUE(first.is_even);
  EXPECT_TRUE(first.is_kept);
  EXPECT_EQ(first.num_samples, 6);
  EXPECT_EQ(slices_of(first), (Slices{{0, 3, 3}, {3, 3, 3}}));
  EXPECT_THAT(first.repeated, IsEmpty());
  const auto last = dealer.deal({3, 2});
  EXPECT_FALSE(last.is_even);
  EXPECT_FALSE(last.is_kept);
  EXPECT_EQ(last.num_samples, 5);
  EXPECT_EQ(slices_of(last), (Slices{{0, 3, 3}, {3, 3, 2}}));
  EXPECT_THAT(last.repeated, ElementsAre(0));
  // A single batch is cut.
  EXPECT_EQ(slices_of(dealer.deal({3})), (Slices{{0, 2, 2}, {2, 2, 1}}));
  EXPECT_EQ(slices_of(dealer.deal({1})), (Slices{{0, 1, 1}, {1, 1, 0}}));
}

TEST(BatchDealer, RepeatsShortFirstRounds) {
  BatchDealer dealer(/*split_batches=*/true, /*drop_last=*/false, 4);
  EXPECT_EQ(dealer.batches_per_turn(), 1);
  EXPECT_THAT(dealer.deal({0}).repeated, IsEmpty());
  const auto first = dealer.deal({2});
  EXPECT_TRUE(first.is_kept);
  EXPECT_THAT(first.repeated, ElementsAre(0, 1));
  EXPECT_EQ(
      slices_of(first), (Slices{{0, 1, 1}, {1, 1, 1}, {2, 1, 0}, {3, 1, 0}}));
  const auto second = dealer.deal({5});
  EXPECT_FALSE(second.is_kept);
  EXPECT_THAT(second.repeated, ElementsAre(0, 1, 0));
  EXPECT_EQ(
      slices_of(second), (Slices{{0, 2, 2}, {2, 2, 2}, {4, 2, 1}, {6, 2, 0}}));
}

TEST(BatchDealer, DropsIndivisibleRounds) {
  BatchDealer dealer(/*split_batches=*/true, /*drop_last=*/true, 2);
  const auto turn = dealer.deal({5});
  EXPECT_FALSE(turn.is_kept);
  EXPECT_EQ(turn.num_samples, 5);
  EXPECT_THAT(turn.repeated, IsEmpty());
  EXPECT_EQ(slices_of(turn), (Slices{{0, 2, 2}, {2, 2, 2}}));
  EXPECT_EQ(slices_of(dealer.deal({1})), (Slices{{0, 0, 0}, {0, 0, 0}}));
}

TEST(BatchDealer, CountsTheTurnsOfAnEpoch) {
  const auto turns = [](bool split_batches, bool drop_last) {
    const BatchDealer dealer(split_batches, drop_last, 3);
    std::vector<int64_t> found;
    for (int64_t num_batches = 0; num_batches < 5; ++num_batches) {
      found.push_back(dealer.num_turns(num_batches));
    }
    return found;
  };
  EXPECT_THAT(turns(false, false), ElementsAre(0, 1, 1, 1, 2));
  EXPECT_THAT(turns(false, true), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(turns(true, false), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(turns(true, true), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(
      [] { BatchDealer(false, false, 0); },
      ThrowsMessage<UsageError>(HasSubstr("world_size is 0, expected")));
}

} // namespace
} // namespace accelerate
