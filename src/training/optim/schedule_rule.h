// SPDX-License-Identifier: Apache-2.0
// The computation of learning rates. Rules work with plain numbers, not with
// optimizers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/error.h"
#include "accelerate/schedulers.h"
#include "accelerate/state/state_dict.h"
#include "core/base/str.h"

namespace accelerate {

struct GroupRate {
  /// The initial learning rate.
  double base_lr = 0;
  double lr = 0;
  /// Set by rules that cycle the momentum.
  std::optional<double> momentum = {};
};

struct Rates {
  std::vector<GroupRate> groups = {};
  /// The optimizer's default learning rate, independent of its groups.
  double default_lr = 0;
};

class ScheduleRule {
 public:
  virtual ~ScheduleRule() = default;
  /// The public name, for messages and to distinguish saved states.
  virtual std::string name() const = 0;
  /// The name of its class in Python. Some schedules share a class.
  virtual std::string torch_class() const { return name(); }
  /// Computes step 0 from the current learning rates.
  virtual void start(Rates& rates) = 0;
  virtual void advance(Rates& rates) = 0;
  virtual void advance(Rates& rates, double metric);
  virtual bool needs_metric() const { return false; }
  /// Whether the rule also sets momenta.
  virtual bool cycles_momentum() const { return false; }
  /// Sets the momenta of the current step after state was loaded.
  virtual void restore_momentum(Rates& /*rates*/) const {}
  /// The maximum number of steps.
  virtual std::optional<int64_t> total_steps() const { return std::nullopt; }
  virtual StateDict state() const = 0;
  virtual void load(const StateDict& state) = 0;
};

/// Rules that depend only on the number of steps.
class CountingRule : public ScheduleRule {
 public:
  void start(Rates& rates) override;
  void advance(Rates& rates) override;
  using ScheduleRule::advance;
  StateDict state() const override;
  void load(const StateDict& state) override;

 protected:
  /// The learning rate of one group after `step` steps.
  virtual double rate(int64_t step, size_t group, const GroupRate& now) = 0;
  virtual void set_all(Rates& rates);
  int64_t step_ = 0;
};

/// Multiplies the initial learning rate by a function of the step.
class LambdaRule final : public CountingRule {
 public:
  using Factors = std::vector<LambdaLR::Factor>;
  /// `make` receives the learning rates of step 0. It returns one function for
  /// all groups, or one per group.
  LambdaRule(std::string name, std::function<Factors(const Rates&)> make)
      : name_(std::move(name)), make_(std::move(make)) {}
  std::string name() const override { return name_; }
  std::string torch_class() const override { return "LambdaLR"; }
  void start(Rates& rates) override;

 protected:
  double rate(int64_t step, size_t group, const GroupRate& now) override;

 private:
  std::string name_;
  std::function<Factors(const Rates&)> make_;
  Factors factors_;
};

/// Throws `UsageError` unless `is_right`.
inline void check_schedule(
    bool is_right,
    const std::string& schedule,
    const std::string& problem) {
  if (!is_right) {
    throw UsageError(str_cat('[', schedule, "] ", problem));
  }
}

} // namespace accelerate
