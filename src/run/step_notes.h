// SPDX-License-Identifier: Apache-2.0
// Have all ranks taken the same steps?
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/export.h"
#include "state/step_state.h"

namespace accelerate {

/// What each rank tells the others before gradients are synchronised, with a
/// message that they send anyway.
struct StepNotes {
  /// See `InputWatch::take`.
  int64_t inputs = 0;
  StepState::Shared shared = {};
  /// See `Accumulation::place`.
  int64_t micro_batch = 0;
  bool is_last_batch = false;

  std::vector<int64_t> encode() const;
  /// `inputs` of each rank.
  static std::vector<int64_t> inputs_of(
      const std::vector<std::vector<int64_t>>& of_ranks);
};

/// `of_ranks` has what `encode` gave on each rank. Throws `MismatchError`, the
/// same on all ranks, if their weights or micro-batches differ. `num_steps` is
/// how many micro-batches an update has.
ACCELERATE_API void check_steps(
    const std::vector<std::vector<int64_t>>& of_ranks,
    int64_t num_steps,
    size_t num_optimizers);

} // namespace accelerate
