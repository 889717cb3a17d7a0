// SPDX-License-Identifier: Apache-2.0
// The registry of a run: stop anywhere, make everything anew, load, go on. What
// comes is compared bit for bit with the run that did not stop.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "support/state.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double dropout)
      : first(register_module("first", torch::nn::Linear(3, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        second(register_module("second", torch::nn::Linear(8, 1))) {}
  Tensor forward(const Tensor& x) {
    return second(drop(torch::relu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};
TORCH_MODULE(Net);

struct Counter final : Stateful {
  StateDict state_dict() const override {
    StateDict state;
    state.set("seen", seen);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    seen = state.get<int64_t>("seen");
  }
  int64_t seen = 0;
};

auto data() {
  auto generator = at::detail::createCPUGenerator(5);
  const auto x = torch::randn({44, 3}, generator);
  return TensorDataset({x, x.sum(1, true)});
}

/// Everything that a run is made of.
struct Training {
  explicit Training(ProcessGroup group, bool weighted)
      : accelerator(
            {.cpu = true,
             .accumulation = {.num_steps = 3},
             .process_group = std::move(group)}),
        model(accelerator.process_group().world_size() == 1 ? 0.3 : 0.0),
        adamw(model->parameters(), {.lr = 0.05}),
        net(accelerator.prepare(model)),
        opt(accelerator.prepare(adamw)),
        scheduler(accelerator.prepare(
            Scheduler(adamw, StepLR{.step_size = 2, .gamma = 0.5}))),
        loader(accelerator.prepare(
            DataLoader(data(), {.batch_size = 2, .shuffle = true, .seed = 9}))),
        counter(std::make_shared<Counter>()),
        weighted(weighted) {
    accelerator.state().add("counter", counter);
  }

  /// Micro-batches up to number `end` of all epochs; state before `save_at`.
  void run(int64_t end, int64_t save_at = -1) {
    while (counter->seen < end) {
      for (auto& batch : loader) {
        const auto window = accelerator.accumulate(net);
        auto loss = torch::mse_loss(net(batch[0]), batch[1]);
        BackwardOptions options;
        if (weighted) {
          options.weight = 1 + counter->seen % 4;
        }
        accelerator.backward(loss, options);
        opt.step();
        scheduler.step();
        opt.zero_grad();
        losses.push_back(loss.item<double>());
        if (++counter->seen == save_at) {
          saved = testing::copy_of(accelerator.state().state_dict());
        }
        if (counter->seen == end) {
          break;
        }
      }
    }
  }

  Accelerator accelerator;
  Net model;
  optim::AdamW adamw;
  PreparedModel<NetImpl> net;
  PreparedOptimizer opt;
  Scheduler scheduler;
  decltype(std::declval<Accelerator&>().prepare(
      std::declval<DataLoader<TensorDataset>&>())) loader;
  std::shared_ptr<Counter> counter;
  bool weighted;
  std::vector<double> losses;
  StateDict saved;
};

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

TEST(StateRegistry, RefusesTheStateOfAnotherModel) {
  Training training({}, false);
  auto state = testing::copy_of(training.accelerator.state().state_dict());
  state.set("model.parameters.first.weight", torch::zeros({2, 2}));
  EXPECT_THAT(
      [&] { training.accelerator.state().load_state_dict(state); },
      ThrowsMessage<UsageError>(HasSubstr("a tensor of shape [2, 2]")));
}

} // namespace
} // namespace accelerate
