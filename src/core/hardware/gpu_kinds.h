// SPDX-License-Identifier: Apache-2.0
// The kinds of GPUs that can be detected without torch: one file and one row
// each.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/hardware/gpus.h"

namespace accelerate {

/// One kind of GPU.
struct GpuKind {
  /// The label that `accelerate env` prints before the version.
  std::string driver_name;
  /// The variable with which users and launchers select GPUs.
  std::string visibility_variable;
  /// Every GPU that the driver shows. Never throws: if there are none,
  /// `problem` says why.
  GpuInventory (*list)();
  /// The GPUs that a value of the variable selects, in its order.
  std::vector<Gpu> (
      *choose)(const std::vector<Gpu>& gpus, const std::string& ids);
  /// What to do if GPUs cannot access each other's memory.
  std::string peer_access_help;
  /// Returns a function that reports the recent utilisation of the GPU with
  /// index `index` in a process with environment `env`, or nothing if the
  /// driver does not say. Empty without a driver.
  std::function<std::optional<double>()> (
      *open_use)(const EnvLookup& env, int index) = nullptr;
};

/// All kinds, in order of preference.
ACCELERATE_INTERNAL const std::vector<GpuKind>& gpu_kinds();

ACCELERATE_INTERNAL GpuKind nvidia_gpus();

} // namespace accelerate
