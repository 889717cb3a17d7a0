// SPDX-License-Identifier: Apache-2.0
// How often a call of a scheduler's `step` moves it, whatever language the
// scheduler comes from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/scheduler_stepping.h"
#include "optim/optimizer_step.h"

namespace accelerate {

/// A call of `step`, and what it depends on.
struct SchedulerCall {
  /// False: the call moves the scheduler once, whatever optimizers do.
  bool follows_optimizers = true;
  /// Those that it follows.
  std::vector<std::shared_ptr<OptimizerStep>> optimizers = {};
  /// By Hugging Face's rule a scheduler moves at the end of an accumulation
  /// unless a step was skipped, also where none was made, and never beyond the
  /// end of its schedule. Else it moves where all its optimizers have stepped,
  /// and a single move beyond the end is the schedule's to refuse.
  bool is_original_rule = false;
  bool sync_gradients = true;
  /// Whether calls in the middle of an accumulation count, without a move
  /// (`adjust_scheduler`).
  bool counts_accumulated = false;
  SchedulerStepping stepping = SchedulerStepping::kPerOptimizerStep;
  int num_processes = 1;
  /// Moves so far, with those that were only counted, and how many the schedule
  /// has, where it has an end.
  int64_t num_counted = 0;
  std::optional<int64_t> end = {};
};

struct SchedulerMoves {
  int64_t num_moves = 0;
  /// To be counted beside the moves.
  int64_t num_counted = 0;
};

ACCELERATE_API SchedulerMoves scheduler_moves(const SchedulerCall& call);

} // namespace accelerate
