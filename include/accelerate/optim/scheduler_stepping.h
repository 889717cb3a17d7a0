// SPDX-License-Identifier: Apache-2.0
// How often prepared schedulers advance.
#pragma once

namespace accelerate {

/// How often a prepared scheduler advances.
enum class SchedulerStepping {
  /// Once per update of the weights.
  kPerOptimizerStep,
  /// `num_processes` times per update, as in Hugging Face Accelerate. Use this
  /// for schedules whose lengths count the batches of all processes.
  kPerProcess,
};

} // namespace accelerate
