// SPDX-License-Identifier: Apache-2.0
// How often prepared schedulers advance.
#pragma once

namespace accelerate {

/// How often a prepared scheduler advances.
enum class SchedulerStepping {
  /// Once per update of the weights.
  kPerOptimizerStep,
  /// `num_processes` times per update, as Hugging Face Accelerate does: for
  /// schedules whose lengths count the batches of one process.
  kPerProcess,
};

} // namespace accelerate
