// SPDX-License-Identifier: Apache-2.0
// The registry of a run: stop anywhere, create everything again, load,
// continue. The rest is compared bit for bit with an uninterrupted run.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "run/training.h"
#include "support/temp_dir.h"
#include "training/parallel/engine.h"

namespace accelerate {
namespace {

using testing::Counter;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::ThrowsMessage;
using testing::Training;

class StateOfARun : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Weighted, StateOfARun, ::testing::Bool());

TEST_P(StateOfARun, ResumesBitForBitFromEveryMicroBatch) {
  // One rank: 22 micro-batches per epoch, so that updates come after every
  // third and at the end of the epoch.
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

TEST_P(StateOfARun, ResumesBitForBitOnTwoRanks) {
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

/// Every gradient of the only weight is x, so that its norm is known.
struct OneWeight {
  OneWeight(AcceleratorOptions options, int64_t num_steps)
      : accelerator(with(std::move(options), num_steps)),
        model(torch::nn::LinearOptions(1, 1).bias(false)),
        sgd(model->parameters(), {.lr = 0.5}),
        net(accelerator.prepare(model)),
        opt(accelerator.prepare(sgd)) {}

  static AcceleratorOptions with(AcceleratorOptions options, int64_t steps) {
    options.cpu = true;
    options.accumulation.num_steps = steps;
    return options;
  }
  void micro_batch(double x) {
    const auto window = accelerator.accumulate(net);
    accelerator.backward(net(torch::full({1, 1}, x)).sum());
  }
  double norm() {
    return accelerator.clip_grad_norm_(model->parameters(), 1e9).item<double>();
  }

  Accelerator accelerator;
  torch::nn::Linear model;
  optim::SGD sgd;
  PreparedModel<torch::nn::LinearImpl> net;
  PreparedOptimizer opt;
};

std::vector<AcceleratorOptions> kinds_of_runs() {
  std::vector<AcceleratorOptions> kinds(3);
  kinds[1] = {.mixed_precision = Precision::kBf16, .master_weights = true};
  kinds[2] = {.ddp = {.gradient_as_bucket_view = false}};
  for (const auto stage :
       {ShardStage::kOptimizer,
        ShardStage::kGradients,
        ShardStage::kParameters}) {
    kinds.push_back({.shard = {.stage = stage}});
    kinds.push_back(
        {.mixed_precision = Precision::kBf16,
         .master_weights = true,
         .shard = {.stage = stage}});
  }
  return kinds;
}

TEST(Rollback, DropsGradientsThatWereNotStepped) {
  for (const int num_ranks : {1, 2}) {
    run_ranks(num_ranks, [&](ProcessGroup group) {
      for (auto options : kinds_of_runs()) {
        if (num_ranks == 1 && options.shard.stage != ShardStage::kNone) {
          continue;
        }
        options.process_group = group;
        for (const int num_steps : {1, 2}) {
          OneWeight run(options, num_steps);
          const auto saved =
              testing::copy_of(run.accelerator.state().state_dict());
          // During an accumulation, and at its end, clipped or not.
          for (int num_done = 1; num_done <= num_steps; ++num_done) {
            for (const bool clips : {false, true}) {
              for (int i = 0; i < num_done; ++i) {
                run.micro_batch(1024);
              }
              if (clips) {
                run.norm();
              }
              run.accelerator.state().load_state_dict(saved);
              EXPECT_FALSE(run.model->weight.grad().defined());
              for (int i = 0; i < num_steps; ++i) {
                run.micro_batch(1);
              }
              EXPECT_EQ(run.norm(), 1)
                  << static_cast<int>(options.shard.stage)
                  << options.master_weights << num_steps << num_done << clips;
              run.opt.step();
              run.opt.zero_grad();
            }
          }
        }
      }
    });
  }
}

/// Weights whose last bits tell in which order gradients were added up.
struct ManyWeights {
  explicit ManyWeights(AcceleratorOptions options)
      : accelerator(OneWeight::with(std::move(options), 3)),
        model(5, 4),
        sgd(model->parameters(), {.lr = 0.1}),
        net(accelerator.prepare(model)),
        opt(accelerator.prepare(sgd)) {}
  torch::Tensor forward(int64_t step) {
    const auto number =
        static_cast<double>(7 * step + accelerator.process_index());
    return net(torch::arange(15).view({3, 5}).mul(number + 0.3).sin());
  }
  /// Micro-batches from one number up to another.
  void run(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      const auto window = accelerator.accumulate(net);
      accelerator.backward(forward(step).square().sum());
      opt.step();
      opt.zero_grad();
    }
  }
  /// A forward whose backward never comes.
  void forward_alone(int64_t step) {
    const auto window = accelerator.accumulate(net);
    forward(step);
  }
  StateDict copy() {
    return testing::copy_of(accelerator.state().state_dict());
  }
  torch::Tensor weights() {
    std::vector<torch::Tensor> flat;
    for (const auto& p : model->parameters()) {
      flat.push_back(net.engine().trained(p).detach().flatten().clone());
    }
    return torch::cat(flat);
  }

  Accelerator accelerator;
  torch::nn::Linear model;
  optim::SGD sgd;
  PreparedModel<torch::nn::LinearImpl> net;
  PreparedOptimizer opt;
};

// A forward of a micro-batch that synchronises, without its backward, must not
// make a later micro-batch synchronise in its place.
TEST(Rollback, AfterAForwardAloneIsBitForBit) {
  run_ranks(3, [&](ProcessGroup group) {
    for (auto options : kinds_of_runs()) {
      options.process_group = group;
      ManyWeights run(options);
      run.run(0, 6);
      const auto saved = run.copy();
      run.run(6, 12);
      const auto expected = run.weights();
      run.accelerator.state().load_state_dict(saved);
      run.run(6, 8);
      run.forward_alone(8);
      run.accelerator.state().load_state_dict(saved);
      run.run(6, 12);
      EXPECT_TRUE(run.weights().equal(expected))
          << static_cast<int>(options.shard.stage) << options.master_weights;
      // The same if the run continues without a rollback, and if it is resumed.
      run.run(12, 14);
      run.forward_alone(14);
      const auto after = run.copy();
      run.run(15, 21);
      ManyWeights resumed(options);
      resumed.run(0, 6);
      resumed.accelerator.state().load_state_dict(after);
      resumed.run(15, 21);
      EXPECT_TRUE(resumed.weights().equal(run.weights()))
          << static_cast<int>(options.shard.stage) << options.master_weights;
    }
  });
}

TEST(Rollback, DropsGradientsThatFilesOfOtherRanksHaveNot) {
  const testing::TempDir folder;
  {
    OneWeight run({}, 2);
    run.accelerator.save_state(folder.path() / "state");
  }
  run_ranks(2, [&](ProcessGroup group) {
    OneWeight run({.process_group = group}, 2);
    run.micro_batch(1024);
    run.accelerator.load_state(folder.path() / "state");
    run.micro_batch(1);
    run.micro_batch(1);
    EXPECT_EQ(run.norm(), 1);
  });
}

TEST(Rollback, DropsGradientsOfNoModel) {
  Accelerator accelerator({.cpu = true});
  torch::nn::Linear model(1, 1);
  auto scale = torch::ones({}, torch::requires_grad());
  optim::SGD sgd(std::vector<torch::Tensor>{scale}, {.lr = 1});
  auto [net, opt] = accelerator.prepare(model, sgd);
  const auto saved = testing::copy_of(accelerator.state().state_dict());
  accelerator.backward((net(torch::ones({1, 1})) * 0 + scale * 1024).sum());
  accelerator.state().load_state_dict(saved);
  accelerator.backward((net(torch::ones({1, 1})) * 0 + scale).sum());
  EXPECT_EQ(scale.grad().item<double>(), 1);
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

TEST(StateRegistry, ReportsAllMismatchesBeforeLoading) {
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
          "[load_state_dict] The saved state does not contain 'd'. The saved "
          "state contains 'b', which this run does not have. Prepare and "
          "register the same objects in the same order before loading"));
  EXPECT_EQ(c->seen, 0);
  EXPECT_THAT(
      [&] { loading.add("x.y", b); },
      ThrowsMessage<UsageError>(HasSubstr("without dots")));
}

/// Rejects any state.
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
      ThrowsMessage<UsageError>(HasSubstr(
          "of a different shape (1): 'first.weight' [2, 2] instead of [")));
}

} // namespace
} // namespace accelerate
