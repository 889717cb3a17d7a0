// SPDX-License-Identifier: Apache-2.0
// How often a call of a scheduler's `step` advances it, independent of the
// language.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/optim/scheduler_stepping.h"
#include "core/base/internal.h"
#include "training/optim/optimizer_step.h"

namespace accelerate {

/// The inputs of one call of `step`.
struct SchedulerCall {
  /// If false, each call advances the scheduler once, regardless of optimizers.
  bool follows_optimizers = true;
  /// The optimizers that the scheduler follows.
  std::vector<std::shared_ptr<OptimizerStep>> optimizers = {};
  /// Whether to use Hugging Face's rule. With this rule, a scheduler advances
  /// at the end of an accumulation unless a step was skipped, even if no step
  /// was made. It never advances beyond the end of its schedule. Without this
  /// rule, a scheduler advances if all its optimizers have stepped, and the
  /// schedule itself rejects a step beyond the end.
  bool is_original_rule = false;
  bool sync_gradients = true;
  /// Whether calls during an accumulation are counted without advancing
  /// (`adjust_scheduler`).
  bool counts_accumulated = false;
  SchedulerStepping stepping = SchedulerStepping::kPerOptimizerStep;
  int num_processes = 1;
  /// The steps so far, including those that were only counted, and the length
  /// of the schedule, if it is limited.
  int64_t num_counted = 0;
  std::optional<int64_t> end = {};
};

struct SchedulerMoves {
  int64_t num_moves = 0;
  /// Steps to count without advancing, in addition to `num_moves`.
  int64_t num_counted = 0;
};

ACCELERATE_INTERNAL SchedulerMoves scheduler_moves(const SchedulerCall& call);

} // namespace accelerate
