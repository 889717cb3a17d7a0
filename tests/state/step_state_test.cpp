// SPDX-License-Identifier: Apache-2.0
#include "training/state/step_state.h"

#include <gmock/gmock.h>

namespace accelerate {
namespace {

TEST(StepState, KnowsTheBatchOfTheLoopThatRuns) {
  StepState state;
  EXPECT_FALSE(state.batch());
  auto train = state.open_feed();
  EXPECT_FALSE(state.batch()) << "no batch was handed out yet";
  train->hand_out({.is_last = true, .num_samples = 4, .num_real = 3});
  ASSERT_TRUE(state.batch());
  EXPECT_TRUE(state.batch()->is_last);
  EXPECT_EQ(state.batch()->num_real, 3);
  train.reset();
  EXPECT_FALSE(state.batch());
}

TEST(StepState, TheFeedSaysHowManySamplesAFullBatchHas) {
  StepState state;
  auto feed = state.open_feed(/*full_size=*/8);
  feed->hand_out({.is_last = true, .num_samples = 5, .num_real = 3});
  EXPECT_EQ(state.batch()->full_size, 8);
  feed->leave();
  EXPECT_EQ(state.batch_in_use()->full_size, 8);
}

TEST(BatchFacts, CountsRowsThatAreSamples) {
  const BatchFacts filled{.num_samples = 8, .num_real = 3, .full_size = 8};
  EXPECT_EQ(filled.num_real_of(8), 3);
  EXPECT_EQ(filled.num_real_of(7), 7);
  EXPECT_TRUE(filled.mixes_repeats(7));
  EXPECT_FALSE(filled.mixes_repeats(8));
  EXPECT_FALSE(filled.has_rows_of_full_batch(8));
  // A short batch, whose loss was repeated for the samples of a full one.
  const BatchFacts last{.num_samples = 5, .num_real = 4, .full_size = 8};
  EXPECT_EQ(last.num_real_of(5), 4);
  EXPECT_EQ(last.num_real_of(8), 8);
  EXPECT_TRUE(last.has_rows_of_full_batch(8));
  EXPECT_FALSE(last.has_rows_of_full_batch(16));
  EXPECT_EQ(last.num_real_of(16), 16);
  EXPECT_EQ(last.num_real_of(0), 0);
  // A whole batch that pads a round, whatever its rows are.
  const BatchFacts repeated{.num_samples = 5, .num_real = 0};
  EXPECT_EQ(repeated.num_real_of(5), 0);
  EXPECT_EQ(repeated.num_real_of(1), 0);
  EXPECT_EQ(repeated.num_real_of(64), 0);
  EXPECT_FALSE(repeated.mixes_repeats(64));
  // Larger than its loader says: 8 rows are not its samples.
  const BatchFacts large{.num_samples = 9, .num_real = 9, .full_size = 8};
  EXPECT_EQ(large.num_real_of(8), 8);
  EXPECT_FALSE(large.has_rows_of_full_batch(8));
  const BatchFacts varying{.num_samples = 2, .num_real = 2};
  EXPECT_EQ(varying.num_real_of(0), 0);
  EXPECT_EQ(varying.num_real_of(3), 3);
}

TEST(StepState, ALoopInsideOfALoopLeavesNoTrace) {
  StepState state;
  auto train = state.open_feed();
  train->hand_out({.is_last = false, .num_samples = 4, .num_real = 4});
  {
    auto evaluation = state.open_feed();
    evaluation->hand_out({.is_last = true, .num_samples = 2, .num_real = 2});
    EXPECT_TRUE(state.batch()->is_last);
  }
  EXPECT_FALSE(state.batch()->is_last);
  EXPECT_EQ(state.batch()->num_samples, 4);
}

TEST(StepState, TheLoopThatReturnedABatchLastFeedsTheStep) {
  StepState state;
  auto first = state.open_feed();
  auto second = state.open_feed();
  second->hand_out({.num_samples = 2});
  first->hand_out({.num_samples = 1});
  EXPECT_EQ(state.batch()->num_samples, 1);
}

TEST(StepState, ALoopMayOutliveTheState) {
  auto state = std::make_unique<StepState>();
  auto feed = state->open_feed();
  state.reset();
  feed->hand_out({});
}

} // namespace
TEST(StepState, KeepsTheBatchOfALoopThatEndedUntilAnotherStarts) {
  StepState state;
  auto feed = state.open_feed();
  feed->hand_out({true, 5, 4});
  feed->leave();
  feed.reset();
  EXPECT_FALSE(state.batch());
  ASSERT_TRUE(state.batch_in_use());
  EXPECT_EQ(state.batch_in_use()->num_real, 4);
  auto next = state.open_feed();
  next->hand_out({false, 5, 5});
  EXPECT_EQ(state.batch_in_use()->num_real, 5);
  next.reset();
  EXPECT_FALSE(state.batch_in_use());
}

} // namespace accelerate
