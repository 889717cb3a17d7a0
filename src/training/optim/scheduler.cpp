// SPDX-License-Identifier: Apache-2.0
#include "training/optim/prepared_optimizers.h"
#include "training/optim/savable.h"
#include "training/optim/schedule_rule.h"
#include "training/optim/scheduler_moves.h"

namespace accelerate {
namespace {

constexpr const char* kMomentumNames[] = {"betas.0", "momentum"};

void set_momentum(SavableOptimizer& optimizer, size_t group, double momentum) {
  StateDict options = optimizer.group_state(group);
  for (const char* name : kMomentumNames) {
    if (options.contains(name)) {
      options.set(name, momentum);
      optimizer.load_group_state(group, options);
      return;
    }
  }
  throw UsageError(
      "[OneCycleLR] cycle_momentum needs an optimizer with momentum or betas. "
      "Set cycle_momentum to false");
}

} // namespace

std::unique_ptr<ScheduleRule> Schedule::make_rule() const {
  return make_();
}

OptimizerToSchedule::OptimizerToSchedule(torch::optim::Optimizer& optimizer)
    : optimizer_(&optimizer) {}
OptimizerToSchedule::OptimizerToSchedule(torch::optim::Optimizer* optimizer)
    : optimizer_(optimizer) {
  if (optimizer == nullptr) {
    throw UsageError(
        "[Scheduler] The optimizer is null. Pass the optimizer whose learning "
        "rates the scheduler sets");
  }
}
OptimizerToSchedule::OptimizerToSchedule(PreparedOptimizer optimizer)
    : optimizer_(&optimizer.optimizer()), prepared_(std::move(optimizer)) {}

struct Scheduler::State final : Stateful {
  State(
      torch::optim::Optimizer& optimizer,
      std::optional<PreparedOptimizer> prepared,
      std::unique_ptr<ScheduleRule> rule)
      : optimizer(optimizer),
        prepared(std::move(prepared)),
        rule(std::move(rule)) {}
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;

  torch::optim::Optimizer& optimizer;
  std::optional<PreparedOptimizer> prepared;
  std::shared_ptr<const PreparedOptimizers> registry;
  std::unique_ptr<ScheduleRule> rule;
  std::vector<double> base_lrs;
  std::vector<double> last_lr;
  int64_t num_steps = 0;
  SchedulerStepping stepping = SchedulerStepping::kPerOptimizerStep;
  int num_processes = 1;

  /// The optimizer's current learning rates.
  Rates rates() const {
    const auto& groups = optimizer.param_groups();
    if (groups.size() != base_lrs.size()) {
      throw UsageError(str_cat(
          "[Scheduler] The optimizer has ",
          groups.size(),
          " parameter groups, but had ",
          base_lrs.size(),
          " when the scheduler was created. Add groups before creating the "
          "scheduler"));
    }
    Rates rates{.groups = {}, .default_lr = optimizer.defaults().get_lr()};
    for (size_t i = 0; i < groups.size(); ++i) {
      rates.groups.push_back({base_lrs[i], groups[i].options().get_lr()});
    }
    return rates;
  }

  void apply(const Rates& rates) {
    const auto momenta = rule->cycles_momentum() ? savable(optimizer) : nullptr;
    last_lr.clear();
    for (size_t i = 0; i < rates.groups.size(); ++i) {
      const GroupRate& group = rates.groups[i];
      optimizer.param_groups()[i].options().set_lr(group.lr);
      last_lr.push_back(group.lr);
      if (group.momentum && !momenta) {
        throw UsageError(
            "[OneCycleLR] cycle_momentum needs an optimizer whose options can "
            "be set by name (see optimizer_state.h). Set cycle_momentum to "
            "false");
      }
      if (group.momentum) {
        set_momentum(*momenta, i, *group.momentum);
      }
    }
  }

  /// The step of the prepared optimizer; null if it was not prepared.
  std::shared_ptr<OptimizerStep> optimizer_step() const {
    if (prepared || !registry) {
      return prepared ? prepared->shared_step() : nullptr;
    }
    auto found = registry->find(optimizer);
    if (!found) {
      throw UsageError(
          "[Scheduler] The scheduler was prepared, but its optimizer was not. "
          "Pass the optimizer to prepare() as well, and use the result");
    }
    return found;
  }

  template <class... Metric>
  void step(Metric... metric) {
    SchedulerCall call{
        .stepping = stepping,
        .num_processes = num_processes,
        .num_counted = num_steps,
        .end = rule->total_steps()};
    if (auto followed = optimizer_step()) {
      call.optimizers.push_back(std::move(followed));
    } else {
      call.follows_optimizers = false;
    }
    const int64_t num_moves = scheduler_moves(call).num_moves;
    for (int64_t i = 0; i < num_moves; ++i) {
      Rates now = rates();
      rule->advance(now, metric...);
      ++num_steps;
      apply(now);
    }
  }
};

Scheduler::Scheduler(
    const OptimizerToSchedule& optimizer,
    const Schedule& schedule)
    : state_(std::make_shared<State>(
          optimizer.optimizer(),
          optimizer.prepared(),
          schedule.make_rule())) {
  for (const auto& group : state_->optimizer.param_groups()) {
    state_->base_lrs.push_back(group.options().get_lr());
  }
  if (state_->base_lrs.empty()) {
    throw UsageError(
        "[Scheduler] The optimizer has no parameter groups, so there is no "
        "learning rate to set. Add a parameter group first");
  }
  Rates rates = state_->rates();
  state_->rule->start(rates);
  state_->apply(rates);
  if (state_->prepared) {
    state_->prepared->shared_step()->add_scheduler(state_);
  } else {
    note_scheduler(state_->optimizer, state_);
  }
}

void Scheduler::step() {
  if (state_->rule->needs_metric()) {
    throw UsageError(str_cat(
        "[step] ", state_->rule->name(), " needs a metric. Call step(metric)"));
  }
  state_->step();
}

void Scheduler::step(double metric) {
  state_->step(metric);
}

const std::vector<double>& Scheduler::last_lr() const {
  return state_->last_lr;
}

StateDict Scheduler::State::state_dict() const {
  StateDict state;
  state.set("kind", rule->name());
  state.set("torch_class", rule->torch_class());
  state.set("num_steps", num_steps);
  for (size_t i = 0; i < base_lrs.size(); ++i) {
    state.set(str_cat("base_lr.", i), base_lrs[i]);
    state.set(str_cat("last_lr.", i), last_lr[i]);
  }
  state.set("schedule", rule->state());
  return state;
}

void Scheduler::State::check_state_dict(const StateDict& state) const {
  // Python stores only the class of a schedule.
  const bool is_named = state.contains("kind");
  const auto& kind = state.get<std::string>(is_named ? "kind" : "torch_class");
  const size_t num_groups = base_lrs.size();
  if (kind != (is_named ? rule->name() : rule->torch_class())) {
    throw UsageError(str_cat(
        "[load_state_dict] The saved state is of type ",
        kind,
        ", but this schedule is of type ",
        rule->name(),
        ". Create the same schedule before loading"));
  }
  if (!state.contains("num_steps")) {
    throw UsageError(str_cat(
        "[load_state_dict] C++ cannot load the state of Python's ",
        kind,
        ". It loads LambdaLR, StepLR, MultiStepLR, ExponentialLR, OneCycleLR "
        "and checkpoints saved in C++"));
  }
  if (state.section("base_lr").size() != num_groups) {
    throw UsageError(str_cat(
        "[load_state_dict] The saved state has ",
        state.section("base_lr").size(),
        " parameter groups, but the optimizer has ",
        num_groups,
        ". Create the same groups before loading"));
  }
}

void Scheduler::State::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  const size_t num_groups = base_lrs.size();
  rule->load(state.section("schedule"));
  num_steps = state.get<int64_t>("num_steps");
  for (size_t i = 0; i < num_groups; ++i) {
    base_lrs[i] = state.get<double>(str_cat("base_lr.", i));
  }
  Rates rates = this->rates();
  for (size_t i = 0; i < num_groups; ++i) {
    rates.groups[i].lr = state.get<double>(str_cat("last_lr.", i));
  }
  rule->restore_momentum(rates);
  apply(rates);
}

StateDict Scheduler::state_dict() const {
  return state_->state_dict();
}
void Scheduler::load_state_dict(const StateDict& state) {
  state_->load_state_dict(state);
}
std::shared_ptr<Stateful> Scheduler::stateful() const {
  return state_;
}

void Scheduler::prepare(
    std::shared_ptr<const PreparedOptimizers> prepared,
    SchedulerStepping stepping,
    int num_processes) {
  if (!state_->prepared) {
    state_->registry = std::move(prepared);
  }
  state_->stepping = stepping;
  state_->num_processes = num_processes;
}

Scheduler get_scheduler(
    const std::string& name,
    const OptimizerToSchedule& optimizer,
    const SchedulerOptions& options) {
  return Scheduler(optimizer, named_schedule(name, options));
}

} // namespace accelerate
