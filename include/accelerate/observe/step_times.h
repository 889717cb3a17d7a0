// SPDX-License-Identifier: Apache-2.0
// Measures how training steps spend their time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The steps of a run so far: see `Accelerator::step_times`. Each training
/// thread has its own times. The first step starts with the first batch
/// request. A step ends at the first batch request, forward or backward pass
/// after an optimizer's update. The next step starts at the same moment.
/// Accumulated micro-batches belong to one step. Time between steps, such as an
/// evaluation, counts for the previous step.
struct ACCELERATE_API StepTimes {
  /// All times are in seconds. Each moment is counted once: communication
  /// inside a backward pass does not count as backward. On a GPU, these are
  /// times of the device, measured between marks in its stream. Work counts
  /// when it runs, not when it is queued. Data that arrives in time costs
  /// nothing. A mark is read only after the device has passed it, without
  /// waiting. The latest steps may therefore be missing.
  struct ACCELERATE_API Phases {
    /// Waiting for batches, including while workers prepare them.
    double data = 0;
    double forward = 0;
    double backward = 0;
    /// Waiting for other ranks, excluding communication that was hidden by
    /// computation.
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
  /// The total over all steps.
  Phases sum = {};
  /// The last steps (at most 1000), oldest first.
  std::vector<Phases> last = {};

  /// Returns two lines about what limits the speed of the run. The first line
  /// shows the share of each phase, such as "300 steps of 12.1 ms: 41 % waits
  /// for data, 35 % backward". The second line gives advice, such as "41 % of
  /// the step waits for data: raise num_workers". Empty if there are no steps.
  std::string summary() const;
};

} // namespace accelerate
