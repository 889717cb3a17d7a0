// SPDX-License-Identifier: Apache-2.0
// Schedules that depend on a metric: torch's ReduceLROnPlateau and
// transformers' GreedyLR.
#include <algorithm>
#include <deque>
#include <limits>

#include "training/optim/schedule_rule.h"

namespace accelerate {
namespace {

/// The best value of a metric so far, and the criterion for improvement.
class Best {
 public:
  template <class Options>
  explicit Best(const Options& options)
      : less_is_better_(options.mode == "min"),
        is_relative_(options.threshold_mode == "rel"),
        threshold_(options.threshold) {
    reset();
  }
  void reset() {
    const double infinity = std::numeric_limits<double>::infinity();
    value_ = less_is_better_ ? infinity : -infinity;
  }
  /// Stores the value if it is better. Returns whether it was better.
  bool improve(double value) {
    const bool is_better =
        less_is_better_ ? value < (is_relative_ ? value_ * (1.0 - threshold_)
                                                : value_ - threshold_)
                        : value > (is_relative_ ? value_ * (threshold_ + 1.0)
                                                : value_ + threshold_);
    if (is_better) {
      value_ = value;
    }
    return is_better;
  }
  double value() const { return value_; }
  void set(double value) { value_ = value; }

 private:
  bool less_is_better_;
  bool is_relative_;
  double threshold_;
  double value_ = 0;
};

class MetricRule : public ScheduleRule {
 public:
  bool needs_metric() const override { return true; }
  void start(Rates&) override {}
  void advance(Rates&) override {}
  using ScheduleRule::advance;
};

class PlateauRule final : public MetricRule {
 public:
  explicit PlateauRule(const ReduceLROnPlateau& options)
      : options_(options), best_(options) {}
  std::string name() const override { return "ReduceLROnPlateau"; }
  void advance(Rates& rates, double metric) override {
    num_bad_ = best_.improve(metric) ? 0 : num_bad_ + 1;
    if (cooldown_ > 0) {
      --cooldown_;
      num_bad_ = 0;
    }
    if (num_bad_ > options_.patience) {
      reduce(rates);
      cooldown_ = options_.cooldown;
      num_bad_ = 0;
    }
  }
  using MetricRule::advance;
  StateDict state() const override {
    StateDict state;
    state.set("best", best_.value());
    state.set("num_bad", num_bad_);
    state.set("cooldown", cooldown_);
    return state;
  }
  void load(const StateDict& state) override {
    best_.set(state.get<double>("best"));
    num_bad_ = state.get<int64_t>("num_bad");
    cooldown_ = state.get<int64_t>("cooldown");
  }

 private:
  void reduce(Rates& rates) const {
    for (auto& group : rates.groups) {
      const double next = std::max(group.lr * options_.factor, options_.min_lr);
      if (group.lr - next > options_.eps) {
        group.lr = next;
      }
    }
  }

  ReduceLROnPlateau options_;
  Best best_;
  int64_t num_bad_ = 0;
  int64_t cooldown_ = 0;
};

/// The mean of the last values.
class MovingMean {
 public:
  explicit MovingMean(int64_t size) : size_(static_cast<size_t>(size)) {}
  double add(double value) {
    values_.push_back(value);
    sum_ += value;
    if (values_.size() > size_) {
      sum_ -= values_.front();
      values_.pop_front();
    }
    return sum_ / static_cast<double>(values_.size());
  }
  void reset() {
    values_.clear();
    sum_ = 0;
  }
  StateDict state() const {
    StateDict state;
    state.set("sum", sum_);
    state.set("size", values_.size());
    for (size_t i = 0; i < values_.size(); ++i) {
      state.set(str_cat("values.", i), values_[i]);
    }
    return state;
  }
  void load(const StateDict& state) {
    reset();
    sum_ = state.get<double>("sum");
    for (int64_t i = 0; i < state.get<int64_t>("size"); ++i) {
      values_.push_back(state.get<double>(str_cat("values.", i)));
    }
  }

 private:
  size_t size_;
  std::deque<double> values_;
  double sum_ = 0;
};

class GreedyRule final : public MetricRule {
 public:
  explicit GreedyRule(const GreedyLR& options)
      : options_(options),
        best_(options),
        mean_(options.window_size),
        reductions_left_(options.reset_start) {}
  std::string name() const override { return "GreedyLR"; }
  void start(Rates& rates) override {
    initial_.clear();
    for (const auto& group : rates.groups) {
      initial_.push_back(group.lr);
    }
  }
  void advance(Rates& rates, double metric) override {
    const double current = options_.smooth ? mean_.add(metric) : metric;
    if (cooldown_ > 0 || warmup_ > 0) {
      --(cooldown_ > 0 ? cooldown_ : warmup_);
      num_bad_ = num_good_ = 0;
      return;
    }
    const bool is_better = best_.improve(current);
    num_bad_ = is_better ? 0 : num_bad_ + 1;
    num_good_ = is_better ? num_good_ + 1 : 0;
    if (num_good_ > options_.patience) {
      raise(rates);
      warmup_ = options_.warmup;
      num_good_ = 0;
    } else if (num_bad_ > options_.patience) {
      reduce(rates);
      cooldown_ = options_.cooldown;
      num_bad_ = 0;
    }
  }
  using MetricRule::advance;
  StateDict state() const override {
    StateDict state;
    state.set("best", best_.value());
    state.set("num_bad", num_bad_);
    state.set("num_good", num_good_);
    state.set("cooldown", cooldown_);
    state.set("warmup", warmup_);
    state.set("reductions_left", reductions_left_);
    state.set("mean", mean_.state());
    for (size_t i = 0; i < initial_.size(); ++i) {
      state.set(str_cat("initial_lr.", i), initial_[i]);
    }
    return state;
  }
  void load(const StateDict& state) override {
    best_.set(state.get<double>("best"));
    num_bad_ = state.get<int64_t>("num_bad");
    num_good_ = state.get<int64_t>("num_good");
    cooldown_ = state.get<int64_t>("cooldown");
    warmup_ = state.get<int64_t>("warmup");
    reductions_left_ = state.get<int64_t>("reductions_left");
    mean_.load(state.section("mean"));
    for (size_t i = 0; i < initial_.size(); ++i) {
      initial_[i] = state.get<double>(str_cat("initial_lr.", i));
    }
  }

 private:
  void raise(Rates& rates) {
    for (auto& group : rates.groups) {
      const double next = std::min(group.lr / options_.factor, options_.max_lr);
      if (next - group.lr > options_.eps) {
        group.lr = next;
      }
    }
    reductions_left_ = options_.reset_start;
  }
  void reduce(Rates& rates) {
    bool all_at_min = true;
    for (auto& group : rates.groups) {
      const double next = std::max(group.lr * options_.factor, options_.min_lr);
      if (group.lr - next > options_.eps) {
        group.lr = next;
      }
      all_at_min = all_at_min && group.lr <= options_.min_lr;
    }
    if (all_at_min && --reductions_left_ <= 0) {
      start_again(rates);
    }
  }
  void start_again(Rates& rates) {
    for (size_t i = 0; i < rates.groups.size(); ++i) {
      rates.groups[i].lr = initial_[i];
    }
    best_.reset();
    mean_.reset();
    num_bad_ = num_good_ = cooldown_ = warmup_ = 0;
    reductions_left_ = options_.reset_start;
  }

  GreedyLR options_;
  Best best_;
  MovingMean mean_;
  std::vector<double> initial_;
  int64_t num_bad_ = 0;
  int64_t num_good_ = 0;
  int64_t cooldown_ = 0;
  int64_t warmup_ = 0;
  int64_t reductions_left_;
};

template <class Options>
void check_metric_options(const char* name, const Options& options) {
  check_schedule(
      options.factor < 1,
      name,
      str_cat("factor is ", options.factor, ", expected less than 1"));
  check_schedule(
      options.mode == "min" || options.mode == "max",
      name,
      str_cat("mode is '", options.mode, "', expected 'min' or 'max'"));
  check_schedule(
      options.threshold_mode == "rel" || options.threshold_mode == "abs",
      name,
      str_cat(
          "threshold_mode is '",
          options.threshold_mode,
          "', expected 'rel' or 'abs'"));
}

} // namespace

Schedule::Schedule(const ReduceLROnPlateau& schedule)
    : make_([schedule] { return std::make_unique<PlateauRule>(schedule); }) {
  check_metric_options("ReduceLROnPlateau", schedule);
}
Schedule::Schedule(const GreedyLR& schedule)
    : make_([schedule] { return std::make_unique<GreedyRule>(schedule); }) {
  check_metric_options("GreedyLR", schedule);
  check_schedule(
      schedule.window_size > 0,
      "GreedyLR",
      str_cat("window_size is ", schedule.window_size, ", expected 1 or more"));
}

} // namespace accelerate
