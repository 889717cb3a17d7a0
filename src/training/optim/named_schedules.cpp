// SPDX-License-Identifier: Apache-2.0
// The schedules of transformers, by name.
//
// Each schedule is a factor of the initial learning rate. The order of
// operations is the same as in transformers, so results are bit-identical.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "training/optim/schedule_rule.h"

namespace accelerate {
namespace {

constexpr double kPi = std::numbers::pi;
using Factor = LambdaLR::Factor;
/// Most factors need only the options. Some need the optimizer's own learning
/// rate.
using FactorMaker =
    std::function<Factor(const SchedulerOptions& options, double default_lr)>;

double as_double(int64_t number) {
  return static_cast<double>(number);
}

void check(const std::string& name, bool is_right, const std::string& problem) {
  check_schedule(is_right, "get_scheduler", str_cat('"', name, "\" ", problem));
}

double rising(int64_t step, const SchedulerOptions& options) {
  return as_double(step) /
         as_double(std::max<int64_t>(1, options.num_warmup_steps));
}

/// The progress of training: 0 at the end of the warm-up, and 1 at the end of
/// training.
double progress(int64_t step, const SchedulerOptions& options) {
  return as_double(step - options.num_warmup_steps) /
         as_double(std::max<int64_t>(
             1, *options.num_training_steps - options.num_warmup_steps));
}

/// A warm-up from 0 to 1, followed by `after`.
Factor with_warmup(const SchedulerOptions& options, Factor after) {
  return [options, after](int64_t step) {
    return step < options.num_warmup_steps ? rising(step, options)
                                           : after(step);
  };
}

Factor constant(const SchedulerOptions&, double) {
  return [](int64_t) { return 1.0; };
}

Factor constant_with_warmup(const SchedulerOptions& options, double) {
  return with_warmup(options, [](int64_t) { return 1.0; });
}

Factor linear(const SchedulerOptions& options, double) {
  return with_warmup(options, [options](int64_t step) {
    const int64_t total = *options.num_training_steps;
    return std::max(
        0.0,
        as_double(total - step) /
            as_double(std::max<int64_t>(1, total - options.num_warmup_steps)));
  });
}

double cosine_wave(const SchedulerOptions& options, double progress) {
  return 0.5 *
         (1.0 +
          std::cos(kPi * options.num_cycles.value_or(0.5) * 2.0 * progress));
}

/// Maps `fraction` from [0, 1] to [least, 1].
double lifted(double fraction, double least) {
  return std::max(0.0, fraction * (1 - least) + least);
}

Factor cosine(const SchedulerOptions& options, double) {
  return with_warmup(options, [options](int64_t step) {
    return std::max(0.0, cosine_wave(options, progress(step, options)));
  });
}

Factor cosine_with_restarts(const SchedulerOptions& options, double) {
  return with_warmup(options, [options](int64_t step) {
    const double done = progress(step, options);
    if (done >= 1.0) {
      return 0.0;
    }
    const double in_cycle =
        std::fmod(options.num_cycles.value_or(1) * done, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * in_cycle)));
  });
}

Factor polynomial(const SchedulerOptions& options, double default_lr) {
  check(
      "polynomial",
      default_lr > options.lr_end,
      str_cat(
          "has lr_end = ",
          options.lr_end,
          ". Pass a value below ",
          default_lr,
          ", the optimizer's learning rate"));
  return with_warmup(options, [options, default_lr](int64_t step) {
    const int64_t total = *options.num_training_steps;
    if (step > total) {
      return options.lr_end / default_lr;
    }
    const double remaining =
        1 - as_double(step - options.num_warmup_steps) /
                as_double(total - options.num_warmup_steps);
    const double decay =
        (default_lr - options.lr_end) * std::pow(remaining, options.power) +
        options.lr_end;
    return decay / default_lr;
  });
}

Factor inverse_sqrt(const SchedulerOptions& options, double) {
  const int64_t timescale = options.timescale.value_or(
      options.num_warmup_steps > 0 ? options.num_warmup_steps : 10'000);
  return with_warmup(options, [options, timescale](int64_t step) {
    return 1.0 / std::sqrt(
                     as_double(step + timescale - options.num_warmup_steps) /
                     as_double(timescale));
  });
}

double least_rate(
    const std::string& name,
    const SchedulerOptions& options,
    double default_lr) {
  check(
      name,
      options.min_lr.has_value() != options.min_lr_rate.has_value(),
      "needs either min_lr or min_lr_rate");
  return options.min_lr ? *options.min_lr / default_lr : *options.min_lr_rate;
}

Factor cosine_with_min_lr(const SchedulerOptions& options, double default_lr) {
  const double least = least_rate("cosine_with_min_lr", options, default_lr);
  return with_warmup(options, [options, least](int64_t step) {
    return lifted(cosine_wave(options, progress(step, options)), least);
  });
}

Factor cosine_warmup_with_min_lr(
    const SchedulerOptions& options,
    double default_lr) {
  const double least =
      least_rate("cosine_warmup_with_min_lr", options, default_lr);
  return [options, least](int64_t step) {
    const double now = as_double(step);
    const double warmup = as_double(options.num_warmup_steps);
    if (now < warmup && !options.warmup_lr_rate) {
      return (now + 1.0) / std::max(1.0, warmup);
    }
    if (now < warmup) {
      const double first = *options.warmup_lr_rate;
      return first + (1.0 - first) * now / std::max(1.0, warmup - 1);
    }
    const double done =
        (now - warmup + 1.0) /
        std::max(1.0, as_double(*options.num_training_steps) - warmup);
    return lifted(cosine_wave(options, done), least);
  };
}

/// The height of a ramp of the given type.
double ramp(const std::string& type, double progress) {
  if (type == "linear") {
    return progress;
  }
  return type == "cosine" ? 0.5 * (1.0 - std::cos(kPi * progress))
                          : 1.0 - std::sqrt(1.0 - progress);
}

double decay(const SchedulerOptions& options, double progress) {
  if (options.decay_type == "linear") {
    return 1.0 - progress;
  }
  return options.decay_type == "cosine" ? cosine_wave(options, progress)
                                        : 1.0 - std::sqrt(progress);
}

Factor warmup_stable_decay(const SchedulerOptions& options, double) {
  const int64_t decay_steps = *options.num_decay_steps;
  const int64_t stable_end =
      options.num_stable_steps
          ? options.num_warmup_steps + *options.num_stable_steps
          : *options.num_training_steps - decay_steps;
  return [options, decay_steps, stable_end](int64_t step) {
    if (step < options.num_warmup_steps) {
      return lifted(
          ramp(options.warmup_type, rising(step, options)),
          options.min_lr_ratio);
    }
    if (step < stable_end) {
      return 1.0;
    }
    if (step < stable_end + decay_steps) {
      const double done = as_double(step - stable_end) /
                          as_double(std::max<int64_t>(1, decay_steps));
      return lifted(decay(options, done), options.min_lr_ratio);
    }
    return options.min_lr_ratio;
  };
}

void check_stable_decay(const SchedulerOptions& options) {
  const std::string name = "warmup_stable_decay";
  check(name, options.num_decay_steps.has_value(), "needs num_decay_steps");
  check(
      name,
      options.num_training_steps || options.num_stable_steps,
      "needs num_training_steps or num_stable_steps");
  const std::pair<const char*, const std::string&> types[] = {
      {"warmup_type", options.warmup_type}, {"decay_type", options.decay_type}};
  for (const auto& [field, type] : types) {
    check(
        name,
        type == "linear" || type == "cosine" || type == "1-sqrt",
        str_cat(
            "has ",
            field,
            " '",
            type,
            "', expected 'linear', 'cosine' or '1-sqrt'"));
  }
}

void check_polynomial(const SchedulerOptions& options) {
  check(
      "polynomial",
      *options.num_training_steps > options.num_warmup_steps,
      "needs num_training_steps above num_warmup_steps");
}

struct Named {
  FactorMaker make;
  bool needs_training_steps = true;
  /// Checks further options.
  void (*check)(const SchedulerOptions& options) = nullptr;
};

const std::map<std::string, Named>& factors() {
  static const std::map<std::string, Named> kFactors = {
      {"linear", {linear}},
      {"cosine", {cosine}},
      {"cosine_with_restarts", {cosine_with_restarts}},
      {"polynomial", {polynomial, true, check_polynomial}},
      {"constant", {constant, false}},
      {"constant_with_warmup", {constant_with_warmup, false}},
      {"inverse_sqrt", {inverse_sqrt, false}},
      {"cosine_with_min_lr", {cosine_with_min_lr}},
      {"cosine_warmup_with_min_lr", {cosine_warmup_with_min_lr}},
      {"warmup_stable_decay", {warmup_stable_decay, false, check_stable_decay}},
  };
  return kFactors;
}

[[noreturn]] void refuse_name(const std::string& name) {
  std::string known = "greedy, reduce_lr_on_plateau";
  for (const auto& [other, unused] : factors()) {
    known += ", " + other;
  }
  throw UsageError(str_cat(
      "[get_scheduler] Unknown schedule \"",
      name,
      "\". Expected one of: ",
      known));
}

void check_counts(const std::string& name, const SchedulerOptions& options) {
  const std::pair<const char*, std::optional<int64_t>> counts[] = {
      {"num_warmup_steps", options.num_warmup_steps},
      {"num_training_steps", options.num_training_steps},
      {"num_decay_steps", options.num_decay_steps},
      {"num_stable_steps", options.num_stable_steps},
  };
  for (const auto& [field, count] : counts) {
    check(
        name,
        count.value_or(0) >= 0,
        str_cat(
            "has ", field, " = ", count.value_or(0), ", expected 0 or more"));
  }
  check(
      name,
      options.timescale.value_or(1) > 0,
      str_cat(
          "has timescale = ",
          options.timescale.value_or(1),
          ", expected 1 or more"));
}

} // namespace

Schedule named_schedule(
    const std::string& name,
    const SchedulerOptions& options) {
  if (name == "reduce_lr_on_plateau") {
    return options.plateau;
  }
  if (name == "greedy") {
    return options.greedy;
  }
  const auto found = factors().find(name);
  if (found == factors().end()) {
    refuse_name(name);
  }
  check_counts(name, options);
  check(
      name,
      options.num_training_steps || !found->second.needs_training_steps,
      "needs num_training_steps, the total number of optimizer steps");
  if (found->second.check != nullptr) {
    found->second.check(options);
  }
  const FactorMaker make = found->second.make;
  return Schedule([name, options, make]() -> std::unique_ptr<ScheduleRule> {
    return std::make_unique<LambdaRule>(
        name, [options, make](const Rates& rates) {
          return LambdaRule::Factors{make(options, rates.default_lr)};
        });
  });
}

} // namespace accelerate
