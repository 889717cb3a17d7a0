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
  /// The folder of the run. Checkpoints are saved as `checkpoints/checkpoint_N`
  /// in this folder. N starts at 0, and each new checkpoint gets the highest
  /// existing number plus 1.
  std::filesystem::path folder = {};
  /// The number of checkpoints to keep. It must be at least 1. When a new
  /// checkpoint is complete, the oldest ones are deleted. By default, all are
  /// kept.
  std::optional<int64_t> total_limit = {};
  /// Let one process on every machine write the whole checkpoint. Use this if
  /// the machines do not share a disk.
  bool save_on_each_node = false;
};

/// How `Accelerator::save_state` saves.
///
///     accelerator.save_state("run/step_100", {.asynchronous = true});
struct ACCELERATE_API SaveStateOptions {
  /// Return as soon as all state has been copied to the host, and write it in
  /// the background. The memory of the copy is reused by the next save. Saves
  /// never overlap: a new save first waits for the previous one. See
  /// `Accelerator::wait_for_save`.
  bool asynchronous = false;
};

} // namespace accelerate
