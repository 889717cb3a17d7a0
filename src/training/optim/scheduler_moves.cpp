// SPDX-License-Identifier: Apache-2.0
#include "training/optim/scheduler_moves.h"

#include <algorithm>

namespace accelerate {
namespace {

bool is_due(const SchedulerCall& call) {
  const auto& optimizers = call.optimizers;
  if (!call.is_original_rule) {
    return std::all_of(
        optimizers.begin(), optimizers.end(), [](const auto& optimizer) {
          return optimizer->did_step();
        });
  }
  return call.sync_gradients &&
         std::none_of(
             optimizers.begin(), optimizers.end(), [](const auto& optimizer) {
               return optimizer->was_skipped();
             });
}

} // namespace

SchedulerMoves scheduler_moves(const SchedulerCall& call) {
  if (!call.follows_optimizers) {
    return {.num_moves = 1};
  }
  if (!is_due(call)) {
    const bool is_counted = call.counts_accumulated && !call.sync_gradients;
    return {.num_counted = is_counted ? 1 : 0};
  }
  const int64_t num_moves =
      call.stepping == SchedulerStepping::kPerProcess ? call.num_processes : 1;
  const bool stops_at_end =
      call.end && (call.is_original_rule || num_moves > 1);
  return {
      .num_moves =
          stops_at_end
              ? std::clamp<int64_t>(*call.end - call.num_counted, 0, num_moves)
              : num_moves};
}

} // namespace accelerate
