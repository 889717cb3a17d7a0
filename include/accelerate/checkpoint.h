// SPDX-License-Identifier: Apache-2.0
// Options for saving and resuming a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "accelerate/export.h"

namespace accelerate {

/// Where `Accelerator::save_state` puts checkpoints if no folder is passed.
///
///     accelerate::Accelerator accelerator(
///         {.checkpoints = {.folder = "run", .total_limit = 3}});
///     accelerator.save_state(); // run/checkpoints/checkpoint_0
struct ACCELERATE_API CheckpointOptions {
  /// The folder of the run. Checkpoints are its `checkpoints/checkpoint_N`; N
  /// starts at 0 and is one more than the highest existing number.
  std::filesystem::path folder = {};
  /// How many checkpoints are kept: when a new one is complete, the oldest are
  /// deleted. All are kept by default. At least 1.
  std::optional<int64_t> total_limit = {};
  /// One process on every machine writes the whole checkpoint. Use this if the
  /// machines share no disk.
  bool save_on_each_node = false;
};

/// How `Accelerator::save_state` saves.
///
///     accelerator.save_state("run/step_100", {.asynchronous = true});
struct ACCELERATE_API SaveStateOptions {
  /// Return when everything is copied to the host, and write in the background.
  /// The copy's memory is kept for the next save. Saves never overlap: the next
  /// one waits. See `Accelerator::wait_for_save`.
  bool asynchronous = false;
};

} // namespace accelerate
