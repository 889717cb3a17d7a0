// SPDX-License-Identifier: Apache-2.0
// A run that is stopped and gone on with: what is kept, and where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "accelerate/export.h"

namespace accelerate {

/// Where `Accelerator::save_state` puts checkpoints that are given no folder.
///
///     accelerate::Accelerator accelerator(
///         {.checkpoints = {.folder = "run", .total_limit = 3}});
///     accelerator.save_state(); // run/checkpoints/checkpoint_0
struct ACCELERATE_API CheckpointOptions {
  /// The folder of the run. Checkpoints are `checkpoints/checkpoint_N` in it, N
  /// counted from 0 and always one more than the highest that is there.
  std::filesystem::path folder = {};
  /// How many of them are kept: the oldest go when a new one is complete. All
  /// where it is not given. At least 1.
  std::optional<int64_t> total_limit = {};
  /// One process of every machine writes the whole checkpoint, for machines
  /// whose disks are their own.
  bool save_on_each_node = false;
};

/// How `Accelerator::save_state` saves.
///
///     accelerator.save_state("run/step_100", {.asynchronous = true});
struct ACCELERATE_API SaveStateOptions {
  /// Returns when everything is copied to the host, and writes while training
  /// goes on. The copy stays in memory for the next time. Saves never overlap:
  /// the next one waits for it. See `Accelerator::wait_for_save`.
  bool asynchronous = false;
};

} // namespace accelerate
