// SPDX-License-Identifier: Apache-2.0
// The kinds of GPUs that are seen without torch: one file and one row each.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hardware/gpus.h"

namespace accelerate {

/// One kind of GPU.
struct GpuKind {
  /// As `accelerate env` writes it before the version.
  std::string driver_name;
  /// By which users choose some of the GPUs, and launchers some for workers.
  std::string visibility_variable;
  /// Every GPU that the driver shows. Never throws: where there are none,
  /// `problem` says why.
  GpuInventory (*list)();
  /// Those that a value of the variable chooses, in its order.
  std::vector<Gpu> (
      *choose)(const std::vector<Gpu>& gpus, const std::string& ids);
  /// What to do where GPUs do not reach each other's memory.
  std::string peer_access_help;
  /// A function that says which share of the time the GPU was busy of late, for
  /// the one that is number `place` to a process of `env`; it gives nothing
  /// where the driver does not say, and there is none without a driver.
  std::function<std::optional<double>()> (
      *open_use)(const EnvLookup& env, int place) = nullptr;
};

/// All kinds, in order of preference.
ACCELERATE_API const std::vector<GpuKind>& gpu_kinds();

ACCELERATE_API GpuKind nvidia_gpus();

} // namespace accelerate
