// SPDX-License-Identifier: Apache-2.0
// The registry of a run: stop anywhere, make everything anew, load, go on. What
// comes is compared bit for bit with the run that did not stop.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "run/training.h"

namespace accelerate {
namespace {

using testing::Counter;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;
using testing::Training;

class StateOfARun : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Weighted, StateOfARun, ::testing::Bool());

TEST_P(StateOfARun, GoesOnBitForBitFromEveryMicroBatch) {
  // One rank: 22 micro-batches an epoch, so that windows end at every third and
  // at the end of the epoch.
  for (const int64_t save_at : {1, 2, 3, 7, 21, 22, 23, 30}) {
    torch::manual_seed(1);
    Training whole({}, GetParam());
    whole.run(36, save_at);
    torch::manual_seed(77);
    Training rest({}, GetParam());
    rest.accelerator.state().load_state_dict(whole.saved);
    rest.run(36);
    const std::vector<double> expected(
        whole.losses.begin() + save_at, whole.losses.end());
    EXPECT_EQ(rest.losses, expected) << save_at;
    for (size_t i = 0; i < whole.model->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(
          whole.model->parameters()[i], rest.model->parameters()[i]))
          << save_at;
    }
  }
}

TEST_P(StateOfARun, GoesOnBitForBitOnTwoRanks) {
  for (const int64_t save_at : {2, 11, 13}) {
    torch::manual_seed(1);
    run_ranks(2, [&](ProcessGroup group) {
      Training whole(group, GetParam());
      whole.run(18, save_at);
      Training rest(group, GetParam());
      rest.accelerator.state().load_state_dict(whole.saved);
      rest.run(18);
      const std::vector<double> expected(
          whole.losses.begin() + save_at, whole.losses.end());
      EXPECT_EQ(rest.losses, expected) << save_at;
    });
  }
}

TEST(StateRegistry, NamesEverythingOfARun) {
  Training training({}, false);
  std::vector<std::string> names;
  for (const auto& [name, object] : training.accelerator.state().objects()) {
    names.push_back(name);
  }
  EXPECT_THAT(
      names,
      IsSupersetOf(
          {"accumulation",
           "generator_cpu",
           "model",
           "engine",
           "optimizer",
           "scheduler",
           "loader",
           "counter"}));
}

TEST(StateRegistry, CountsObjectsOfOneKindAndForgetsThoseThatAreGone) {
  StateRegistry registry;
  const auto first = std::make_shared<Counter>();
  EXPECT_EQ(registry.add("counter", first), "counter");
  EXPECT_EQ(registry.add("other", first), "counter");
  auto second = std::make_shared<Counter>();
  EXPECT_EQ(registry.add("counter", second), "counter_1");
  EXPECT_EQ(registry.objects().size(), 2u);
  second.reset();
  EXPECT_EQ(registry.objects().size(), 1u);
}

TEST(StateRegistry, SaysEverythingThatDoesNotFitBeforeItLoads) {
  StateRegistry saving;
  const auto a = std::make_shared<Counter>();
  const auto b = std::make_shared<Counter>();
  a->seen = 3;
  saving.add("a", a);
  saving.add("b", b);
  StateRegistry loading;
  const auto c = std::make_shared<Counter>();
  const auto d = std::make_shared<Counter>();
  loading.add("a", c);
  loading.add("d", d);
  EXPECT_THAT(
      [&] { loading.load_state_dict(saving.state_dict()); },
      ThrowsMessage<UsageError>(
          HasSubstr("the state lacks 'd' and the run lacks 'b'")));
  EXPECT_EQ(c->seen, 0);
  EXPECT_THAT(
      [&] { loading.add("x.y", b); },
      ThrowsMessage<UsageError>(HasSubstr("without dots")));
}

/// Takes nobody's state.
struct Picky final : Stateful {
  StateDict state_dict() const override {
    StateDict state;
    state.set("kind", "picky");
    return state;
  }
  void check_state_dict(const StateDict& /*state*/) const override {
    throw UsageError("[test] not this one");
  }
  void load_state_dict(const StateDict& /*state*/) override {}
};

TEST(StateRegistry, AsksAllBeforeTheFirstIsLoaded) {
  StateRegistry registry;
  const auto counter = std::make_shared<Counter>();
  registry.add("counter", counter);
  const auto picky = std::make_shared<Picky>();
  registry.add("picky", picky);
  counter->seen = 3;
  const auto state = testing::copy_of(registry.state_dict());
  counter->seen = 5;
  EXPECT_THROW(registry.load_state_dict(state), UsageError);
  EXPECT_EQ(counter->seen, 5);
}

TEST(StateRegistry, RefusesTheStateOfAnotherModel) {
  Training training({}, false);
  auto state = testing::copy_of(training.accelerator.state().state_dict());
  state.set("model.first.weight", torch::zeros({2, 2}));
  EXPECT_THAT(
      [&] { training.accelerator.state().load_state_dict(state); },
      ThrowsMessage<UsageError>(
          HasSubstr("of another shape 1: 'first.weight' [2, 2] instead of [")));
}

} // namespace
} // namespace accelerate
