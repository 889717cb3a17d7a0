// SPDX-License-Identifier: Apache-2.0
// When to stop: a metric that no longer gets better.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/export.h"
#include "accelerate/stateful.h"

namespace accelerate {

struct ACCELERATE_API EarlyStoppingOptions {
  /// Values in a row without a better one before it is time to stop; at
  /// least 1.
  int64_t patience = 3;
  /// By how much a value has to be better to count; not negative.
  double min_delta = 0;
  /// Whether larger is better (accuracy) or smaller (loss).
  bool larger_is_better = false;
};

/// Sees one value after the other. Talks to nobody: give it the same value on
/// all ranks, as metrics compute it, and all ranks stop together. NaN is never
/// better.
///
///     accelerate::EarlyStopping stopping({.patience = 2});
///     for (int epoch = 0; epoch < 100; ++epoch) {
///       train(8);
///       if (stopping.should_stop(loss.item<double>())) {
///         break;
///       }
///     }
///
/// Its state joins checkpoints by `accelerator.state().add("stopping", ...)`.
class ACCELERATE_API EarlyStopping : public Stateful {
 public:
  /// Throws `UsageError` on options outside of their range.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  /// Takes the next value; whether it is time to stop.
  bool should_stop(double value);
  /// Whether the latest value is the best so far: the moment to save.
  bool is_best() const { return best_ && num_worse_ == 0; }
  /// Nothing before the first value that is a number.
  std::optional<double> best() const { return best_; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  EarlyStoppingOptions options_;
  std::optional<double> best_;
  int64_t num_worse_ = 0;
};

} // namespace accelerate
