// SPDX-License-Identifier: Apache-2.0
#include "state/step_state.h"

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

TEST(StepState, TheLoopThatHandedOutLastFeedsTheStep) {
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
TEST(StepState, KnowsTheBatchOfALoopThatWasLeftUntilAnotherBegins) {
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
