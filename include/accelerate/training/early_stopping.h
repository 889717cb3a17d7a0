// SPDX-License-Identifier: Apache-2.0
// Stops training when a metric no longer improves.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/export.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

struct ACCELERATE_API EarlyStoppingOptions {
  /// How many consecutive values without improvement are tolerated. It must be
  /// at least 1.
  int64_t patience = 3;
  /// The minimum change that counts as an improvement. Must not be negative.
  double min_delta = 0;
  /// Whether larger is better (accuracy) or smaller (loss).
  bool larger_is_better = false;
};

/// Decides when to stop, based on one metric value per evaluation. It does not
/// communicate. Pass the same value on all ranks, so that they stop together.
/// (Metrics return the same value on all ranks.) NaN never counts as an
/// improvement.
///
///     accelerate::EarlyStopping stopping({.patience = 2});
///     for (int epoch = 0; epoch < 100; ++epoch) {
///       train(8);
///       if (stopping.should_stop(loss.item<double>())) {
///         break;
///       }
///     }
///
/// To save its state in checkpoints: `accelerator.state().add("stopping",
/// ...)`.
class ACCELERATE_API EarlyStopping : public Stateful {
 public:
  /// Throws `UsageError` if an option is out of range.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  /// Takes the next value, and returns whether to stop.
  bool should_stop(double value);
  /// Whether the latest value is the best so far and the model should be saved.
  bool is_best() const { return best_ && num_worse_ == 0; }
  /// Empty before the first value that is not NaN.
  std::optional<double> best() const { return best_; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  EarlyStoppingOptions options_;
  std::optional<double> best_;
  int64_t num_worse_ = 0;
};

} // namespace accelerate
