// SPDX-License-Identifier: Apache-2.0
// torch's schedules that count steps, and their combinations.
//
// If torch computes a learning rate from the previous one, so does this code,
// because repeated multiplication rounds differently from powers.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "training/optim/schedule_rule.h"

namespace accelerate {

void ScheduleRule::advance(Rates& /*rates*/, double /*metric*/) {
  throw UsageError(str_cat("[step] ", name(), " takes no metric. Call step()"));
}

void CountingRule::set_all(Rates& rates) {
  for (size_t i = 0; i < rates.groups.size(); ++i) {
    rates.groups[i].lr = rate(step_, i, rates.groups[i]);
  }
}
void CountingRule::start(Rates& rates) {
  step_ = 0;
  set_all(rates);
}
void CountingRule::advance(Rates& rates) {
  ++step_;
  set_all(rates);
}
StateDict CountingRule::state() const {
  StateDict state;
  state.set("step", step_);
  return state;
}
void CountingRule::load(const StateDict& state) {
  step_ = state.get<int64_t>("step");
}

void LambdaRule::start(Rates& rates) {
  factors_ = make_(rates);
  check_schedule(
      factors_.size() == 1 || factors_.size() == rates.groups.size(),
      name_,
      str_cat(
          "Got ",
          factors_.size(),
          " factors for ",
          rates.groups.size(),
          " parameter groups. Pass one factor for each group"));
  CountingRule::start(rates);
}
double LambdaRule::rate(int64_t step, size_t group, const GroupRate& now) {
  return now.base_lr * factors_[factors_.size() == 1 ? 0 : group](step);
}

namespace {

class StepRule final : public CountingRule {
 public:
  explicit StepRule(StepLR options) : options_(options) {}
  std::string name() const override { return "StepLR"; }

 protected:
  double rate(int64_t step, size_t, const GroupRate& now) override {
    return step == 0 || step % options_.step_size != 0
               ? now.lr
               : now.lr * options_.gamma;
  }

 private:
  StepLR options_;
};

class MultiStepRule final : public CountingRule {
 public:
  explicit MultiStepRule(MultiStepLR options) : options_(std::move(options)) {}
  std::string name() const override { return "MultiStepLR"; }

 protected:
  double rate(int64_t step, size_t, const GroupRate& now) override {
    const auto hits = std::count(
        options_.milestones.begin(), options_.milestones.end(), step);
    return hits == 0
               ? now.lr
               : now.lr * std::pow(options_.gamma, static_cast<double>(hits));
  }

 private:
  MultiStepLR options_;
};

class ExponentialRule final : public CountingRule {
 public:
  explicit ExponentialRule(ExponentialLR options) : options_(options) {}
  std::string name() const override { return "ExponentialLR"; }

 protected:
  double rate(int64_t step, size_t, const GroupRate& now) override {
    return step == 0 ? now.lr : now.lr * options_.gamma;
  }

 private:
  ExponentialLR options_;
};

class OneCycleRule final : public CountingRule {
 public:
  explicit OneCycleRule(OneCycleLR options) : options_(std::move(options)) {}
  std::string name() const override { return "OneCycleLR"; }
  bool cycles_momentum() const override { return options_.cycle_momentum; }
  std::optional<int64_t> total_steps() const override {
    return options_.total_steps;
  }
  void start(Rates& rates) override {
    check_schedule(
        options_.max_lr.size() == 1 ||
            options_.max_lr.size() == rates.groups.size(),
        name(),
        str_cat(
            "Got ",
            options_.max_lr.size(),
            " values of max_lr for ",
            rates.groups.size(),
            " parameter groups. Pass one value for all groups, or one for each "
            "group"));
    CountingRule::start(rates);
  }
  void restore_momentum(Rates& rates) const override {
    if (options_.cycle_momentum) {
      for (auto& group : rates.groups) {
        group.momentum = momentum();
      }
    }
  }

 protected:
  void set_all(Rates& rates) override {
    check_schedule(
        step_ <= options_.total_steps,
        name(),
        str_cat(
            "Step ",
            step_,
            " is past total_steps = ",
            options_.total_steps,
            ". Set total_steps to the total number of steps in all epochs"));
    CountingRule::set_all(rates);
    restore_momentum(rates);
  }
  double rate(int64_t, size_t group, const GroupRate&) override {
    const double highest =
        options_.max_lr[options_.max_lr.size() == 1 ? 0 : group];
    const double initial = highest / options_.div_factor;
    const double least = initial / options_.final_div_factor;
    const Phase phase = find_phase();
    if (phase.index == 0) {
      return anneal(initial, highest, phase.progress);
    }
    if (phase.index + 1 < num_phases()) {
      return anneal(highest, initial, phase.progress);
    }
    return anneal(
        options_.three_phase ? initial : highest, least, phase.progress);
  }

 private:
  struct Phase {
    int index;
    double progress;
  };
  int num_phases() const { return options_.three_phase ? 3 : 2; }

  double end_of(int phase) const {
    const auto total = static_cast<double>(options_.total_steps);
    if (phase + 1 == num_phases()) {
      return total - 1;
    }
    return phase == 0 ? options_.pct_start * total - 1
                      : 2 * options_.pct_start * total - 2;
  }
  Phase find_phase() const {
    const auto step = static_cast<double>(step_);
    double start = 0;
    int phase = 0;
    while (phase + 1 < num_phases() && step > end_of(phase)) {
      start = end_of(phase++);
    }
    return {phase, (step - start) / (end_of(phase) - start)};
  }
  double anneal(double from, double to, double progress) const {
    if (options_.anneal_strategy == "linear") {
      return (to - from) * progress + from;
    }
    return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * progress) + 1);
  }
  double momentum() const {
    const Phase phase = find_phase();
    const bool falls = phase.index == 0;
    const bool rests = options_.three_phase && phase.index == 2;
    return anneal(
        falls || rests ? options_.max_momentum : options_.base_momentum,
        falls ? options_.base_momentum : options_.max_momentum,
        phase.progress);
  }

  OneCycleLR options_;
};

/// The common base of chained and sequential schedules.
class CombinedRule : public ScheduleRule {
 public:
  explicit CombinedRule(const std::vector<Schedule>& schedules) {
    for (const auto& schedule : schedules) {
      rules_.push_back(schedule.make_rule());
    }
  }
  bool cycles_momentum() const override {
    return std::any_of(rules_.begin(), rules_.end(), [](const auto& rule) {
      return rule->cycles_momentum();
    });
  }
  StateDict state() const override {
    StateDict state;
    for (size_t i = 0; i < rules_.size(); ++i) {
      state.set(str_cat("schedules.", i), rules_[i]->state());
    }
    return state;
  }
  void load(const StateDict& state) override {
    for (size_t i = 0; i < rules_.size(); ++i) {
      rules_[i]->load(state.section(str_cat("schedules.", i)));
    }
  }

 protected:
  std::vector<std::unique_ptr<ScheduleRule>> rules_;
};

class ChainedRule final : public CombinedRule {
 public:
  using CombinedRule::CombinedRule;
  std::string name() const override { return "ChainedScheduler"; }
  void start(Rates& rates) override {
    for (const auto& rule : rules_) {
      rule->start(rates);
    }
  }
  void advance(Rates& rates) override {
    for (const auto& rule : rules_) {
      rule->advance(rates);
    }
  }
  using ScheduleRule::advance;
  void restore_momentum(Rates& rates) const override {
    for (const auto& rule : rules_) {
      rule->restore_momentum(rates);
    }
  }
};

class SequentialRule final : public CombinedRule {
 public:
  explicit SequentialRule(const SequentialLR& options)
      : CombinedRule(options.schedules), milestones_(options.milestones) {}
  std::string name() const override { return "SequentialLR"; }
  void start(Rates& rates) override {
    step_ = 0;
    // Start all rules, because after loading, a later rule continues without a
    // start.
    for (size_t i = rules_.size(); i-- > 0;) {
      start_schedule(i, rates);
    }
  }
  void advance(Rates& rates) override {
    ++step_;
    const size_t current = current_schedule();
    if (current > 0 && milestones_[current - 1] == step_) {
      start_schedule(current, rates);
    } else {
      rules_[current]->advance(rates);
    }
  }
  using ScheduleRule::advance;
  void restore_momentum(Rates& rates) const override {
    rules_[current_schedule()]->restore_momentum(rates);
  }
  StateDict state() const override {
    StateDict state = CombinedRule::state();
    state.set("step", step_);
    return state;
  }
  void load(const StateDict& state) override {
    CombinedRule::load(state);
    step_ = state.get<int64_t>("step");
  }

 private:
  size_t current_schedule() const {
    return static_cast<size_t>(
        std::upper_bound(milestones_.begin(), milestones_.end(), step_) -
        milestones_.begin());
  }
  void start_schedule(size_t index, Rates& rates) {
    for (auto& group : rates.groups) {
      group.lr = group.base_lr;
    }
    rules_[index]->start(rates);
  }

  std::vector<int64_t> milestones_;
  int64_t step_ = 0;
};

void check_schedules(const char* name, const std::vector<Schedule>& schedules) {
  check_schedule(
      !schedules.empty(), name, "No schedules were passed. Pass at least one");
  for (const auto& schedule : schedules) {
    const auto rule = schedule.make_rule();
    check_schedule(
        !rule->needs_metric(),
        name,
        str_cat(
            rule->name(),
            " needs a metric and cannot be combined with other schedules. Step "
            "it separately"));
  }
}

template <class Rule, class Options>
Schedule::Maker maker(const Options& options) {
  return [options] { return std::make_unique<Rule>(options); };
}

} // namespace

Schedule::Schedule(const LambdaLR& schedule) {
  check_schedule(
      static_cast<bool>(schedule.factor) != !schedule.factors.empty(),
      "LambdaLR",
      "Set either factor or factors");
  LambdaRule::Factors factors = schedule.factors;
  if (schedule.factor) {
    factors = {schedule.factor};
  }
  make_ = [factors] {
    return std::make_unique<LambdaRule>(
        "LambdaLR", [factors](const Rates&) { return factors; });
  };
}
Schedule::Schedule(const StepLR& schedule) : make_(maker<StepRule>(schedule)) {
  check_schedule(
      schedule.step_size > 0,
      "StepLR",
      str_cat("step_size is ", schedule.step_size, ", expected 1 or more"));
}
Schedule::Schedule(const MultiStepLR& schedule)
    : make_(maker<MultiStepRule>(schedule)) {
  check_schedule(
      !schedule.milestones.empty(),
      "MultiStepLR",
      "milestones is empty. Pass at least one");
}
Schedule::Schedule(const ExponentialLR& schedule)
    : make_(maker<ExponentialRule>(schedule)) {
  check_schedule(
      schedule.gamma > 0,
      "ExponentialLR",
      str_cat("gamma is ", schedule.gamma, ", expected more than 0"));
}
Schedule::Schedule(const OneCycleLR& schedule)
    : make_(maker<OneCycleRule>(schedule)) {
  check_schedule(
      schedule.total_steps > 0,
      "OneCycleLR",
      str_cat("total_steps is ", schedule.total_steps, ", expected 1 or more"));
  check_schedule(
      schedule.pct_start >= 0 && schedule.pct_start <= 1,
      "OneCycleLR",
      str_cat("pct_start is ", schedule.pct_start, ", expected 0 to 1"));
  check_schedule(
      schedule.anneal_strategy == "cos" || schedule.anneal_strategy == "linear",
      "OneCycleLR",
      str_cat(
          "anneal_strategy is '",
          schedule.anneal_strategy,
          "', expected 'cos' or 'linear'"));
}
Schedule::Schedule(const ChainedScheduler& schedule)
    : make_(maker<ChainedRule>(schedule.schedules)) {
  check_schedules("ChainedScheduler", schedule.schedules);
}
Schedule::Schedule(const SequentialLR& schedule)
    : make_(maker<SequentialRule>(schedule)) {
  check_schedules("SequentialLR", schedule.schedules);
  check_schedule(
      schedule.milestones.size() + 1 == schedule.schedules.size() &&
          std::is_sorted(
              schedule.milestones.begin(), schedule.milestones.end()),
      "SequentialLR",
      str_cat(
          "Got ",
          schedule.milestones.size(),
          " milestones for ",
          schedule.schedules.size(),
          " schedules. Pass milestones in ascending order, one fewer than "
          "there are schedules"));
}

} // namespace accelerate
