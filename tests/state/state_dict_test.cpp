// SPDX-License-Identifier: Apache-2.0
#include "accelerate/state/state_dict.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(StateDict, RoundTripsEachType) {
  StateDict state;
  state.set("on", true);
  state.set("count", 3);
  state.set("rate", 0.5);
  state.set("name", "adam");
  state.set("moment", at::ones({2}));
  EXPECT_TRUE(state.get<bool>("on"));
  EXPECT_EQ(state.get<int64_t>("count"), 3);
  EXPECT_EQ(state.get<double>("rate"), 0.5);
  EXPECT_EQ(state.get<std::string>("name"), "adam");
  EXPECT_TRUE(at::equal(state.get<at::Tensor>("moment"), at::ones({2})));
  EXPECT_EQ(state.size(), 5u);
}

TEST(StateDict, PartsKeepTheirNamesApart) {
  StateDict inner;
  inner.set("step", 1);
  StateDict state;
  state.set("a", inner);
  state.set("ab.step", 2);
  EXPECT_EQ(state.get<int64_t>("a.step"), 1);
  EXPECT_EQ(state.section("a").size(), 1u);
  EXPECT_EQ(state.section("ab").get<int64_t>("step"), 2);
  EXPECT_TRUE(state.section("b").empty());
}

TEST(StateDict, AcceptsItselfAsAPart) {
  StateDict state;
  state.set("a.b", 1);
  state.set("a", 2);
  state.set("a", state);
  EXPECT_EQ(state.size(), 4u);
  EXPECT_EQ(state.get<int64_t>("a.a.b"), 1);
  EXPECT_EQ(state.get<int64_t>("a.a"), 2);
}

TEST(StateDict, RefusesNumbersThatDoNotFit) {
  StateDict state;
  EXPECT_THAT(
      [&] { state.set("seed", ~uint64_t{0}); },
      ThrowsMessage<UsageError>(HasSubstr("'seed'")));
  state.set("letter", 'a');
  EXPECT_EQ(state.get<int64_t>("letter"), 'a');
}

TEST(StateDict, SaysWhatIsMissingAndWhatHasAnotherType) {
  StateDict state;
  state.set("step", 1);
  EXPECT_THAT(
      [&] { state.get<double>("step"); },
      ThrowsMessage<UsageError>(
          HasSubstr("'step' is an integer instead of a number")));
  EXPECT_THAT(
      [&] { state.get<bool>("scale"); },
      ThrowsMessage<UsageError>(HasSubstr("'scale' is missing")));
}

} // namespace
} // namespace accelerate
