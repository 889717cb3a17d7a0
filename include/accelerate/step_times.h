// SPDX-License-Identifier: Apache-2.0
// Where the time of training steps goes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The steps of a run so far: see `Accelerator::step_times`. Each thread that
/// trains has its own: another thread finds no steps. A step goes from
/// where the first batch is asked for, or from the end of the step before, to
/// where the next begins after an optimizer's update; micro-batches that are
/// added up belong to one. What lies between, such as an evaluation, counts for
/// the step that it follows.
struct ACCELERATE_API StepTimes {
  /// Seconds. Each moment counts once: communication inside of a backward is
  /// none of the backward's. On a GPU they are the device's: what it spends
  /// between marks that parts leave in its stream, so that work which was only
  /// handed over counts where it runs, and data that came in time costs
  /// nothing. Marks are read when the device has passed them and are never
  /// waited for: the latest steps may still be missing.
  struct ACCELERATE_API Parts {
    /// Waited for batches, also while others make them.
    double data = 0;
    double forward = 0;
    double backward = 0;
    /// Waited for other ranks: what computing did not hide.
    double communication = 0;
    double optimizer = 0;
    double checkpoint = 0;
    /// Steps that were replayed as a whole.
    double captured = 0;
    /// Everything else that the program does.
    double other = 0;

    double total() const;
  };

  int64_t num_steps = 0;
  /// Of all steps together.
  Parts sum = {};
  /// One by one, the oldest first; no more than the last 1000.
  std::vector<Parts> last = {};

  /// What bounds the run, in words, such as "300 steps of 12.1 ms: 41 % waits
  /// for data, 35 % backward" and so on, and in a second line "41 % of the step
  /// waits for data: raise num_workers". Empty without steps.
  std::string summary() const;
};

} // namespace accelerate
