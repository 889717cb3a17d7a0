// SPDX-License-Identifier: Apache-2.0
// Compares the steps of ranks that synchronise gradients.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "training/comm/agreement.h"
#include "training/state/step_state.h"

namespace accelerate {

/// What each rank sends to the others before gradients are synchronised, as a
/// part of a message that ranks exchange anyway.
struct StepNotes {
  static constexpr int64_t kUnknown = -1;

  /// See `InputWatch::take`.
  int64_t inputs = 0;
  StepState::UpdateCounts update_counts = {};
  /// `StepState::num_missed_updates`.
  int64_t missed_updates = 0;
  /// A bit for each optimizer (`OptimizerStep::holds_synchronised`), or
  /// `kUnknown`.
  int64_t holds_synchronised = 0;
  /// `OptimizerAdapter::sum_of_learning_rates`, by `OptimizerStep::index`.
  std::array<double, StepState::UpdateCounts::kMostOptimizers> learning_rates =
      {};

  Notes encode() const;
  /// `inputs` of each rank.
  static std::vector<int64_t> inputs_of(const NotesOfRanks& of_ranks);
};

/// How messages name the optimizers of an Accelerator.
struct OptimizerNumbers {
  int count = 0;
  /// By `OptimizerStep::index`. 0 for optimizers of other Accelerators.
  std::array<int, StepState::UpdateCounts::kMostOptimizers> of_index = {};
};

/// Compares the results of `encode` on each rank, which `of_ranks` contains. If
/// ranks did different things, so that their weights or gradients differ,
/// throws the same `MismatchError` on all ranks.
void check_steps(
    const NotesOfRanks& of_ranks,
    const OptimizerNumbers& optimizers);

} // namespace accelerate
