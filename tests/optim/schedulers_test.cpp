// SPDX-License-Identifier: Apache-2.0
// 200 steps of every schedule, as transformers and PyTorch take them. Expected
// values: tools/make_schedule_reference.py.
#include "accelerate/schedulers.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "optim/reference.h"
#include "training/optim/optimizer_step.h"
#include "training/optim/scheduler_moves.h"
#include "training/optim/torch_optimizer.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kSteps = 200;

double metric(int64_t step) {
  return 1.0 / static_cast<double>(1 + step / 25) +
         static_cast<double>(step * 7 % 5) / 64.0;
}

/// Two groups with rates 1e-2 and 3e-3.
template <class Optimizer = optim::SGD>
Optimizer two_groups() {
  const std::vector<optim::ParameterGroup> groups = {
      {.parameters = {torch::zeros({1}, torch::requires_grad())}},
      {.parameters = {torch::zeros({1}, torch::requires_grad())}, .lr = 3e-3}};
  if constexpr (std::is_same_v<Optimizer, optim::SGD>) {
    return Optimizer(groups, {.lr = 1e-2, .momentum = 0.9});
  } else {
    return Optimizer(groups, {.lr = 1e-2});
  }
}

struct ScheduleCase {
  std::string name;
  Schedule schedule;
  bool with_metric = false;
};
std::ostream& operator<<(std::ostream& out, const ScheduleCase& c) {
  return out << c.name;
}

Schedule named(const std::string& name, SchedulerOptions options = {}) {
  if (options.num_warmup_steps == 0) {
    options.num_warmup_steps = 20;
  }
  if (!options.num_training_steps && !options.num_stable_steps) {
    options.num_training_steps = 180;
  }
  return named_schedule(name, options);
}

double half_per_40(int64_t step) {
  return std::pow(0.5, static_cast<double>(step / 40));
}
double hyperbola(int64_t step) {
  return 1 / static_cast<double>(1 + step);
}
double rising_to_30(int64_t step) {
  return static_cast<double>(step + 1) / 30;
}

std::vector<ScheduleCase> counting_cases() {
  const SchedulerOptions whole = {.num_training_steps = 200};
  return {
      {"linear", named("linear")},
      {"linear_no_warmup", named_schedule("linear", whole)},
      {"cosine", named("cosine")},
      {"cosine_cycles", named("cosine", {.num_cycles = 1.75})},
      {"cosine_with_restarts",
       named("cosine_with_restarts", {.num_cycles = 3})},
      {"polynomial", named("polynomial")},
      {"polynomial_power", named("polynomial", {.lr_end = 1e-4, .power = 2.5})},
      {"constant", named("constant")},
      {"constant_with_warmup", named("constant_with_warmup")},
      {"inverse_sqrt", named("inverse_sqrt")},
      {"inverse_sqrt_timescale", named("inverse_sqrt", {.timescale = 35})},
      {"inverse_sqrt_no_warmup", named_schedule("inverse_sqrt", whole)},
      {"cosine_with_min_lr", named("cosine_with_min_lr", {.min_lr = 1e-3})},
      {"cosine_with_min_lr_rate",
       named("cosine_with_min_lr", {.min_lr_rate = 0.2})},
      {"cosine_warmup_with_min_lr",
       named("cosine_warmup_with_min_lr", {.min_lr_rate = 0.2})},
      {"cosine_warmup_with_min_lr_start",
       named(
           "cosine_warmup_with_min_lr",
           {.min_lr = 1e-3, .warmup_lr_rate = 0.05})},
      {"wsd", named("warmup_stable_decay", {.num_decay_steps = 50})},
      {"wsd_linear",
       named(
           "warmup_stable_decay",
           {.num_decay_steps = 50,
            .num_stable_steps = 60,
            .warmup_type = "cosine",
            .decay_type = "linear",
            .min_lr_ratio = 0.1})},
      {"wsd_sqrt",
       named(
           "warmup_stable_decay",
           {.num_decay_steps = 50,
            .warmup_type = "1-sqrt",
            .decay_type = "1-sqrt"})},
      {"step", StepLR{.step_size = 30, .gamma = 0.3}},
      {"multi_step",
       MultiStepLR{.milestones = {50, 120, 120, 150}, .gamma = 0.3}},
      {"exponential", ExponentialLR{.gamma = 0.97}},
      {"lambda", LambdaLR{.factors = {hyperbola, half_per_40}}},
      {"sequential",
       SequentialLR{
           .schedules =
               {LambdaLR{.factor = rising_to_30},
                ExponentialLR{.gamma = 0.97},
                StepLR{.step_size = 7, .gamma = 0.5}},
           .milestones = {30, 120}}},
      {"chained",
       ChainedScheduler{
           {MultiStepLR{.milestones = {40, 90}, .gamma = 0.3},
            ExponentialLR{.gamma = 0.99}}}},
      {"one_cycle", OneCycleLR{.max_lr = {0.1, 0.03}, .total_steps = 200}},
  };
}

std::vector<ScheduleCase> schedule_cases() {
  std::vector<ScheduleCase> all = counting_cases();
  const auto add = [&](const char* name, const Schedule& schedule) {
    all.push_back({name, schedule, true});
  };
  add("plateau",
      named_schedule(
          "reduce_lr_on_plateau", {.plateau = {.factor = 0.5, .patience = 4}}));
  add("plateau_max",
      ReduceLROnPlateau{
          .mode = "max",
          .factor = 0.7,
          .patience = 9,
          .threshold = 0.01,
          .threshold_mode = "abs",
          .cooldown = 6,
          .min_lr = 1e-3});
  add("greedy",
      named_schedule(
          "greedy",
          {.greedy = {.patience = 2, .min_lr = 5e-3, .max_lr = 1.5e-2}}));
  add("greedy_smooth",
      GreedyLR{
          .factor = 0.6,
          .patience = 1,
          .cooldown = 2,
          .warmup = 3,
          .min_lr = 5e-3,
          .smooth = true,
          .window_size = 7,
          .reset_start = 2});
  return all;
}

void advance(Scheduler& scheduler, const ScheduleCase& c, int64_t step) {
  if (c.with_metric) {
    scheduler.step(metric(step));
  } else {
    scheduler.step();
  }
}

/// The same operations in the same order. Allows two units in the last place of
/// the initial rate for another C library's cos and pow, and for compilers that
/// fuse a product with a sum.
void expect_rates(
    const std::vector<double>& got,
    const Tensor& expected,
    int64_t step) {
  ASSERT_EQ(static_cast<int64_t>(got.size()), expected.size(1));
  for (size_t group = 0; group < got.size(); ++group) {
    ASSERT_NEAR(
        got[group],
        expected[step][static_cast<int64_t>(group)].item<double>(),
        4e-18)
        << "step " << step << ", group " << group;
  }
}

class Schedules : public ::testing::TestWithParam<ScheduleCase> {};
INSTANTIATE_TEST_SUITE_P(
    Names,
    Schedules,
    ::testing::ValuesIn(schedule_cases()),
    [](const auto& info) { return info.param.name; });

TEST_P(Schedules, TakeTheStepsOfTheOriginal) {
  const Tensor expected = reference("schedules", GetParam().name);
  auto optimizer = two_groups();
  Scheduler scheduler(optimizer, GetParam().schedule);
  expect_rates(scheduler.last_lr(), expected, 0);
  for (int64_t step = 1; step <= kSteps; ++step) {
    advance(scheduler, GetParam(), step);
    expect_rates(scheduler.last_lr(), expected, step);
    EXPECT_EQ(optimizer.options(1).lr, scheduler.last_lr()[1]);
  }
}

TEST_P(Schedules, ResumeFromASavedState) {
  for (const int64_t stop : {0, 57, 130}) {
    auto optimizer = two_groups();
    Scheduler before(optimizer, GetParam().schedule);
    for (int64_t step = 1; step <= stop; ++step) {
      advance(before, GetParam(), step);
    }
    auto fresh = two_groups();
    // The initial rates are part of the state.
    fresh.options(0).lr = 4;
    Scheduler after(fresh, GetParam().schedule);
    after.load_state_dict(before.state_dict());
    EXPECT_EQ(fresh.options(0).lr, optimizer.options(0).lr);
    EXPECT_EQ(fresh.options(0).momentum, optimizer.options(0).momentum);
    for (int64_t step = stop + 1; step <= kSteps; ++step) {
      advance(before, GetParam(), step);
      advance(after, GetParam(), step);
      ASSERT_EQ(before.last_lr(), after.last_lr()) << step;
    }
  }
}

/// One step per update of the weights on any number of ranks, none during
/// accumulation.
TEST_P(Schedules, FollowThePreparedOptimizerOnOneTwoAndFourRanks) {
  const Tensor expected = reference("schedules", GetParam().name);
  for (const int num_ranks : {1, 2, 4}) {
    run_ranks(num_ranks, [&](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      auto raw = two_groups();
      Scheduler made(raw, GetParam().schedule);
      auto [scheduler, optimizer] = accelerator.prepare(made, raw);
      for (auto& parameters : raw.param_groups()) {
        parameters.params()[0].mutable_grad() = torch::ones({1});
      }
      advance(scheduler, GetParam(), 1);
      expect_rates(scheduler.last_lr(), expected, 0);
      for (int64_t step = 1; step <= kSteps; ++step) {
        optimizer.step();
        advance(scheduler, GetParam(), step);
        expect_rates(scheduler.last_lr(), expected, step);
      }
    });
  }
}

template <class Optimizer>
void expect_momentum(
    const std::string& name,
    const OneCycleLR& schedule,
    Optimizer& optimizer,
    const std::function<double()>& momentum) {
  const Tensor rates = reference("schedules", name);
  const Tensor momenta = reference("schedules", name + ".momentum");
  Scheduler scheduler(optimizer, schedule);
  for (int64_t step = 0; step <= kSteps; ++step) {
    if (step > 0) {
      scheduler.step();
    }
    expect_rates(scheduler.last_lr(), rates, step);
    EXPECT_NEAR(momentum(), momenta[step].item<double>(), 4e-16) << step;
  }
}

TEST(OneCycle, CyclesTheMomentumToo) {
  auto sgd = two_groups();
  expect_momentum(
      "one_cycle", {.max_lr = {0.1, 0.03}, .total_steps = 200}, sgd, [&] {
        return sgd.options(0).momentum;
      });
  const OneCycleLR linear = {
      .max_lr = {0.1},
      .total_steps = 210,
      .pct_start = 0.25,
      .anneal_strategy = "linear",
      .div_factor = 10,
      .three_phase = true};
  auto adamw = two_groups<optim::AdamW>();
  expect_momentum("one_cycle_linear", linear, adamw, [&] {
    return adamw.options(0).betas.first;
  });
  // torch's own optimizers cycle as well.
  torch::optim::AdamW theirs(
      {torch::optim::OptimizerParamGroup({torch::zeros({1})}),
       torch::optim::OptimizerParamGroup({torch::zeros({1})})});
  expect_momentum("one_cycle_linear", linear, theirs, [&] {
    return std::get<0>(static_cast<torch::optim::AdamWOptions&>(
                           theirs.param_groups()[0].options())
                           .betas());
  });
}

TEST(Scheduler, WaitsWhileGradientsAreAccumulatedAndAfterASkippedStep) {
  auto raw = two_groups();
  auto state = std::make_shared<StepState>();
  auto scaler = std::make_shared<GradScaler>();
  PreparedOptimizer optimizer(
      raw,
      std::make_shared<OptimizerStep>(
          std::make_unique<TorchOptimizer>(raw), state, scaler));
  Scheduler scheduler(optimizer, ExponentialLR{.gamma = 0.5});
  const auto step_with = [&](double gradient) {
    scaler->scale(torch::ones({1}));
    raw.param_groups()[0].params()[0].mutable_grad() =
        torch::full({1}, gradient);
    optimizer.step();
    scheduler.step();
    scaler->update();
    return scheduler.last_lr();
  };
  state->set_sync_gradients(false);
  EXPECT_THAT(step_with(1), ElementsAre(1e-2, 3e-3));
  state->set_sync_gradients(true);
  EXPECT_THAT(step_with(1), ElementsAre(5e-3, 1.5e-3));
  EXPECT_THAT(step_with(INFINITY), ElementsAre(5e-3, 1.5e-3));
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_THAT(step_with(1), ElementsAre(2.5e-3, 0.75e-3));
}

TEST(Scheduler, StepsOncePerProcessIfRequested) {
  for (const int num_ranks : {1, 2, 4}) {
    run_ranks(num_ranks, [num_ranks](ProcessGroup group) {
      Accelerator accelerator(
          {.cpu = true,
           .scheduler_stepping = SchedulerStepping::kPerProcess,
           .process_group = group});
      auto raw = two_groups();
      Scheduler decay(raw, ExponentialLR{.gamma = 0.5});
      // Ends after three steps, even in the middle of a call.
      auto other = two_groups();
      Scheduler cycle(other, OneCycleLR{.max_lr = {0.1}, .total_steps = 3});
      auto [optimizer, second, scheduler, bounded] =
          accelerator.prepare(raw, other, decay, cycle);
      for (auto* each : {&raw, &other}) {
        each->param_groups()[0].params()[0].mutable_grad() = torch::ones({1});
      }
      optimizer.step();
      scheduler.step();
      EXPECT_EQ(scheduler.last_lr()[0], 1e-2 * std::pow(0.5, num_ranks));
      for (int i = 0; i < 3; ++i) {
        second.step();
        bounded.step();
      }
      EXPECT_EQ(bounded.state_dict().get<int64_t>("num_steps"), 3);
    });
  }
}

TEST(SchedulerMoves, FollowTheRuleOfTheirLanguage) {
  auto raw = two_groups();
  auto state = std::make_shared<StepState>();
  auto scaler = std::make_shared<GradScaler>();
  const auto optimizer = std::make_shared<OptimizerStep>(
      std::make_unique<TorchOptimizer>(raw), state, scaler);
  /// Steps by our rule, by Hugging Face's, and those that are only counted.
  const auto moves = [&](SchedulerCall call) {
    call.optimizers = {optimizer};
    call.sync_gradients = state->sync_gradients();
    const int64_t ours = scheduler_moves(call).num_moves;
    call.is_original_rule = true;
    call.counts_accumulated = true;
    const SchedulerMoves originals = scheduler_moves(call);
    return std::vector{ours, originals.num_moves, originals.num_counted};
  };
  const auto step_with = [&](double gradient) {
    scaler->scale(torch::ones({1}));
    raw.param_groups()[0].params()[0].mutable_grad() =
        torch::full({1}, gradient);
    optimizer->step();
    scaler->update();
  };
  const SchedulerCall per_process{
      .stepping = SchedulerStepping::kPerProcess, .num_processes = 4};
  // No step was made.
  EXPECT_THAT(moves({}), ElementsAre(0, 1, 0));
  step_with(1);
  EXPECT_THAT(moves({}), ElementsAre(1, 1, 0));
  EXPECT_THAT(moves(per_process), ElementsAre(4, 4, 0));
  // At the end of a schedule.
  auto ending = per_process;
  ending.num_counted = 8;
  ending.end = 10;
  EXPECT_THAT(moves(ending), ElementsAre(2, 2, 0));
  ending.num_counted = 11;
  EXPECT_THAT(moves(ending), ElementsAre(0, 0, 0));
  EXPECT_THAT(moves({.num_counted = 10, .end = 10}), ElementsAre(1, 0, 0));
  EXPECT_THAT(moves({.num_counted = 9, .end = 10}), ElementsAre(1, 1, 0));
  // During an accumulation.
  state->set_sync_gradients(false);
  EXPECT_THAT(moves(per_process), ElementsAre(0, 0, 1));
  state->set_sync_gradients(true);
  step_with(INFINITY);
  EXPECT_THAT(moves(per_process), ElementsAre(0, 0, 0));
  // Whatever the optimizer did, also at the end.
  ending.follows_optimizers = false;
  EXPECT_THAT(moves(ending), ElementsAre(1, 1, 0));
}

TEST(Scheduler, ReportsBadUseInOneLine) {
  auto optimizer = two_groups();
  const auto throws = [](const auto&... texts) {
    return ThrowsMessage<UsageError>(AllOf(HasSubstr(texts)...));
  };
  const auto getting = [&](const char* name, SchedulerOptions options = {}) {
    return [&optimizer, name, options] {
      get_scheduler(name, optimizer, options);
    };
  };
  EXPECT_THAT(
      getting("linaer"),
      throws(
          "Unknown schedule \"linaer\"",
          "greedy",
          "linear",
          "cosine_with_min"));
  EXPECT_THAT(getting("linear"), throws("\"linear\" needs num_training_steps"));
  EXPECT_THAT(
      getting("linear", {.num_warmup_steps = -1, .num_training_steps = 3}),
      throws("\"linear\" has num_warmup_steps = -1, expected 0 or more"));
  EXPECT_THAT(
      getting("inverse_sqrt", {.timescale = 0}), throws("timescale = 0"));
  EXPECT_THAT(
      getting("polynomial", {.num_training_steps = 9, .lr_end = 1}),
      throws("lr_end = 1. Pass a value below 0.01, the optimizer's learning "
             "rate"));
  EXPECT_THAT(
      getting("polynomial", {.num_warmup_steps = 9, .num_training_steps = 9}),
      throws("needs num_training_steps above num_warmup_steps"));
  EXPECT_THAT(
      getting("cosine_with_min_lr", {.num_training_steps = 9}),
      throws("needs either min_lr or min_lr_rate"));
  EXPECT_THAT(
      getting("warmup_stable_decay", {.num_training_steps = 9}),
      throws("needs num_decay_steps"));
  EXPECT_THAT(
      getting("warmup_stable_decay", {.num_decay_steps = 9}),
      throws("needs num_training_steps or num_stable_steps"));
  EXPECT_THAT(
      getting(
          "warmup_stable_decay",
          {.num_decay_steps = 9, .num_stable_steps = 1, .decay_type = "x"}),
      throws("decay_type 'x', expected 'linear'"));
  torch::optim::Optimizer* none = nullptr;
  EXPECT_THAT(
      [&] { get_scheduler("constant", none); }, throws("optimizer is null"));
  optim::SGD empty(std::vector<optim::ParameterGroup>{});
  EXPECT_THAT(
      [&] { get_scheduler("constant", empty); },
      throws("has no parameter groups"));
  Scheduler plateau(optimizer, ReduceLROnPlateau{});
  EXPECT_THAT(
      [&] { plateau.step(); },
      throws("ReduceLROnPlateau needs a metric. Call step(metric)"));
  Scheduler steps(optimizer, StepLR{.step_size = 2});
  EXPECT_THAT(
      [&] { steps.step(1.0); }, throws("StepLR takes no metric. Call step()"));
  EXPECT_THAT(
      [&] { steps.load_state_dict(plateau.state_dict()); },
      throws("of type ReduceLROnPlateau, but this schedule is of type StepLR"));
  optimizer.add_group({.parameters = {torch::zeros({1})}});
  EXPECT_THAT(
      [&] { steps.step(); }, throws("has 3 parameter groups, but had 2"));
  EXPECT_THAT(
      [&] {
        Scheduler(optimizer, StepLR{.step_size = 2})
            .load_state_dict(steps.state_dict());
      },
      throws("has 2 parameter groups, but the optimizer has 3"));
}

TEST(Scheduler, ReportsInvalidSchedules) {
  auto optimizer = two_groups();
  const auto throws = [](const char* text) {
    return ThrowsMessage<UsageError>(HasSubstr(text));
  };
  const auto making = [&](const auto& schedule) {
    return [&optimizer, schedule] { Scheduler(optimizer, schedule); };
  };
  EXPECT_THAT(making(StepLR{}), throws("[StepLR] step_size is 0"));
  EXPECT_THAT(
      making(MultiStepLR{}), throws("[MultiStepLR] milestones is empty"));
  EXPECT_THAT(making(ExponentialLR{}), throws("[ExponentialLR] gamma is 0"));
  EXPECT_THAT(making(LambdaLR{}), throws("Set either factor or factors"));
  EXPECT_THAT(
      making(LambdaLR{.factors = {hyperbola, hyperbola, hyperbola}}),
      throws("Got 3 factors for 2 parameter groups"));
  EXPECT_THAT(making(OneCycleLR{}), throws("total_steps is 0"));
  EXPECT_THAT(
      making(OneCycleLR{.total_steps = 9}), throws("Got 0 values of max_lr"));
  EXPECT_THAT(
      making(ReduceLROnPlateau{.mode = "least"}), throws("mode is 'least'"));
  EXPECT_THAT(making(GreedyLR{.factor = 1}), throws("factor is 1"));
  EXPECT_THAT(making(ChainedScheduler{}), throws("No schedules were passed"));
  EXPECT_THAT(
      making(ChainedScheduler{{ReduceLROnPlateau{}}}),
      throws("ReduceLROnPlateau needs a metric and cannot be combined"));
  EXPECT_THAT(
      making(SequentialLR{
          .schedules = {StepLR{.step_size = 1}}, .milestones = {3}}),
      throws("Got 1 milestones for 1 schedules"));
  auto adafactor = two_groups<optim::Adafactor>();
  const OneCycleLR cycle = {.max_lr = {1}, .total_steps = 2};
  EXPECT_THAT(
      [&] { Scheduler(adafactor, cycle); },
      throws("needs an optimizer with momentum or betas"));
  Scheduler scheduler(optimizer, cycle);
  scheduler.step();
  scheduler.step();
  EXPECT_THAT([&] { scheduler.step(); }, throws("is past total_steps = 2"));
  Accelerator accelerator({.cpu = true});
  Scheduler lonely(optimizer, StepLR{.step_size = 1});
  auto prepared = accelerator.prepare(lonely);
  EXPECT_THAT([&] { prepared.step(); }, throws("its optimizer was not"));
}

} // namespace
} // namespace accelerate::testing
