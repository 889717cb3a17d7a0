// SPDX-License-Identifier: Apache-2.0
// Compares how many steps each rank has taken.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/export.h"
#include "state/step_state.h"

namespace accelerate {

/// What each rank sends to the others before gradients are synchronised, as
/// part of a message that they exchange anyway.
struct StepNotes {
  /// See `InputWatch::take`.
  int64_t inputs = 0;
  StepState::Shared shared = {};

  std::vector<int64_t> encode() const;
  /// `inputs` of each rank.
  static std::vector<int64_t> inputs_of(
      const std::vector<std::vector<int64_t>>& of_ranks);
};

/// `of_ranks` has what `encode` returned on each rank. Throws `MismatchError`,
/// the same on all ranks, if they have updated or clipped a different number of
/// times.
ACCELERATE_API void check_steps(
    const std::vector<std::vector<int64_t>>& of_ranks,
    size_t num_optimizers);

} // namespace accelerate
