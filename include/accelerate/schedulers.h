// SPDX-License-Identifier: Apache-2.0
// The learning rate schedules of transformers, by name, and those of torch.
//
//     auto scheduler = accelerate::get_scheduler(
//         "linear",
//         optimizer,
//         {.num_warmup_steps = 100, .num_training_steps = 1000});
//     accelerate::Scheduler other(
//         optimizer, accelerate::StepLR{.step_size = 30});
//
// A schedule (`StepLR{...}`) is a plain value. A `Scheduler` runs a schedule on
// an optimizer. All values are computed as in transformers and torch.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/optim/scheduler_stepping.h"
#include "accelerate/optimizer.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

class ScheduleRule;
struct PreparedOptimizers;
struct LambdaLR;
struct StepLR;
struct MultiStepLR;
struct ExponentialLR;
struct OneCycleLR;
struct ReduceLROnPlateau;
struct GreedyLR;
struct ChainedScheduler;
struct SequentialLR;

/// Any schedule. Conversions from the structs below throw `UsageError` if a
/// value is out of range.
class ACCELERATE_API Schedule {
 public:
  using Maker = std::function<std::unique_ptr<ScheduleRule>()>;
  explicit Schedule(Maker make) : make_(std::move(make)) {}
  Schedule(const LambdaLR& schedule);
  Schedule(const StepLR& schedule);
  Schedule(const MultiStepLR& schedule);
  Schedule(const ExponentialLR& schedule);
  Schedule(const OneCycleLR& schedule);
  Schedule(const ReduceLROnPlateau& schedule);
  Schedule(const GreedyLR& schedule);
  Schedule(const ChainedScheduler& schedule);
  Schedule(const SequentialLR& schedule);

  std::unique_ptr<ScheduleRule> make_rule() const;

 private:
  Maker make_;
};

/// Multiplies the initial rate by a function of the number of steps.
struct LambdaLR {
  using Factor = std::function<double(int64_t step)>;
  Factor factor = {};
  /// One factor per group. If set, `factor` is not used.
  std::vector<Factor> factors = {};
};

/// Multiplies the rate by `gamma` every `step_size` steps.
struct StepLR {
  int64_t step_size = 0;
  double gamma = 0.1;
};

/// Multiplies the rate by `gamma` at each milestone.
struct MultiStepLR {
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};

/// Multiplies the rate by `gamma` at every step.
struct ExponentialLR {
  double gamma = 0;
};

/// Increases the rate from `max_lr / div_factor` to `max_lr`, then decreases it
/// to `max_lr / div_factor / final_div_factor`. The momentum, or the first
/// beta, is cycled inversely. Stepping beyond `total_steps` throws.
struct OneCycleLR {
  /// One rate for all groups, or one rate per group.
  std::vector<double> max_lr = {};
  int64_t total_steps = 0;
  double pct_start = 0.3;
  /// Either "cos" or "linear".
  std::string anneal_strategy = "cos";
  /// Requires an optimizer with `momentum` or `betas` whose state can be read
  /// (see optimizer_state.h).
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};

/// Multiplies the rate by `factor` if a metric has not improved for more than
/// `patience` steps. Call `step(metric)`.
struct ReduceLROnPlateau {
  /// "min" if lower is better, or "max" if higher is better.
  std::string mode = "min";
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  /// With "rel", a value is an improvement if it is below best * (1 -
  /// threshold) or, with the mode "max", above best * (1 + threshold). With
  /// "abs", the limits are best - threshold and best + threshold.
  std::string threshold_mode = "rel";
  int64_t cooldown = 0;
  double min_lr = 0;
  /// Changes of the rate that are smaller than this are not applied.
  double eps = 1e-8;
};

/// transformers' GreedyLR, which divides the rate by `factor` while a metric
/// improves, and multiplies it by `factor` while the metric does not improve.
/// Call `step(metric)`.
struct GreedyLR {
  std::string mode = "min";
  double factor = 0.95;
  int64_t patience = 10;
  double threshold = 1e-6;
  std::string threshold_mode = "abs";
  int64_t cooldown = 0;
  int64_t warmup = 0;
  double min_lr = 1e-3;
  double max_lr = 1;
  double eps = 1e-8;
  /// Average the metric over the last `window_size` values.
  bool smooth = false;
  int64_t window_size = 50;
  /// Start again after this many reductions at `min_lr`.
  int64_t reset_start = 500;
};

/// Applies all schedules at every step, in order (torch's ChainedScheduler).
struct ChainedScheduler {
  std::vector<Schedule> schedules = {};
};

/// Runs the first schedule until the first milestone, then starts the next
/// schedule from the initial rates, and so on (torch's SequentialLR).
struct SequentialLR {
  std::vector<Schedule> schedules = {};
  std::vector<int64_t> milestones = {};
};

/// The optimizer to schedule. It may be prepared. A null pointer causes a
/// `UsageError`.
class ACCELERATE_API OptimizerToSchedule {
 public:
  OptimizerToSchedule(torch::optim::Optimizer& optimizer);
  OptimizerToSchedule(torch::optim::Optimizer* optimizer);
  OptimizerToSchedule(PreparedOptimizer optimizer);

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const std::optional<PreparedOptimizer>& prepared() const { return prepared_; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::optional<PreparedOptimizer> prepared_;
};

/// Runs a schedule on an optimizer, which must outlive the scheduler. The
/// constructor uses the current rates as the initial rates and sets the rates
/// of step 0. Copies share all state.
///
/// With a prepared optimizer, `step` does nothing unless the latest
/// `optimizer.step()` updated the weights. It therefore does nothing during
/// gradient accumulation and after a skipped step. `save_state` saves the
/// schedulers of prepared optimizers, including those created for the original
/// optimizer and those that are never passed to `prepare`.
class ACCELERATE_API Scheduler {
 public:
  /// Throws `UsageError` if the optimizer has no groups.
  Scheduler(const OptimizerToSchedule& optimizer, const Schedule& schedule);

  /// Call it after `optimizer.step()`.
  void step();
  /// Call this for ReduceLROnPlateau and GreedyLR, which require a metric.
  /// Other schedules do not take a metric.
  void step(double metric);
  /// The latest rates, one per group.
  const std::vector<double>& last_lr() const;

  /// The position and all accumulated values. Loading also sets the optimizer's
  /// rates. The schedule itself is not included, so create the same schedule
  /// before loading.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
  /// The same state, for a `StateRegistry`. It is valid as long as this
  /// scheduler or a copy of it exists.
  std::shared_ptr<Stateful> stateful() const;

  /// Called by `Accelerator::prepare`. From then on, this scheduler and its
  /// copies follow the prepared optimizer.
  void prepare(
      std::shared_ptr<const PreparedOptimizers> prepared,
      SchedulerStepping stepping,
      int num_processes);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Arguments of transformers' schedules. `num_warmup_steps` is optional here
/// and defaults to 0.
struct ACCELERATE_API SchedulerOptions {
  int64_t num_warmup_steps = 0;
  /// Required by linear, cosine*, polynomial, and warmup_stable_decay without
  /// `num_stable_steps`.
  std::optional<int64_t> num_training_steps = {};
  /// For cosine, the number of waves (default: 0.5). For cosine_with_restarts,
  /// the number of restarts (default: 1).
  std::optional<double> num_cycles = {};
  /// For polynomial.
  double lr_end = 1e-7;
  double power = 1;
  /// For inverse_sqrt. Default: `num_warmup_steps`, or 10,000 without a
  /// warm-up.
  std::optional<int64_t> timescale = {};
  /// For cosine_with_min_lr and cosine_warmup_with_min_lr: the minimum, either
  /// as a rate (`min_lr`) or as a fraction of the initial rate (`min_lr_rate`).
  /// Set one of the two.
  std::optional<double> min_lr = {};
  std::optional<double> min_lr_rate = {};
  /// For cosine_warmup_with_min_lr.
  std::optional<double> warmup_lr_rate = {};
  /// For warmup_stable_decay, which requires `num_decay_steps`. Types:
  /// "linear", "cosine", "1-sqrt".
  std::optional<int64_t> num_decay_steps = {};
  std::optional<int64_t> num_stable_steps = {};
  std::string warmup_type = "linear";
  std::string decay_type = "cosine";
  double min_lr_ratio = 0;
  /// For reduce_lr_on_plateau.
  ReduceLROnPlateau plateau = {};
  /// For greedy.
  GreedyLR greedy = {};
};

/// Returns a schedule of transformers: linear, cosine, cosine_with_restarts,
/// polynomial, constant, constant_with_warmup, inverse_sqrt,
/// reduce_lr_on_plateau, cosine_with_min_lr, cosine_warmup_with_min_lr,
/// warmup_stable_decay or greedy. Throws `UsageError` if the name is unknown, a
/// required number is missing, or a number is negative.
ACCELERATE_API Schedule
named_schedule(const std::string& name, const SchedulerOptions& options = {});
ACCELERATE_API Scheduler get_scheduler(
    const std::string& name,
    const OptimizerToSchedule& optimizer,
    const SchedulerOptions& options = {});

} // namespace accelerate
