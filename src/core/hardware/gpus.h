// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, detected without torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/process.h"
#include "core/base/internal.h"

namespace accelerate {

struct Gpu {
  int index = 0;
  std::string name = {};
  /// For NVIDIA: "GPU-" and a UUID.
  std::string uuid = {};
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;
  /// "0000:1b:00.0", as in /sys/bus/pci/devices.
  std::string pci_address = {};
  /// The NUMA node. Unset if the machine does not report it.
  std::optional<int> numa_node = {};
  /// Indices of the GPUs whose memory this one can access directly.
  std::vector<int> peers = {};
};

struct GpuKind;

struct GpuInventory {
  std::vector<Gpu> gpus = {};
  /// "570.86.10". Empty without a driver.
  std::string driver = {};
  /// Why there are no GPUs. Empty if there are any.
  std::string problem = {};
  /// The row of `gpu_kinds()` for all GPUs. Null if there are none.
  const GpuKind* kind = nullptr;
};

/// Every GPU of the first of `kinds` (`gpu_kinds()`, except in tests) that this
/// machine has, in PCI order. A short-lived child process queries the driver,
/// so this process creates no context, links nothing and keeps none of the
/// driver's threads. Never throws: a machine without GPUs has an empty list.
ACCELERATE_INTERNAL GpuInventory list_gpus(const std::vector<GpuKind>& kinds);

/// The GPUs that workers may use: `ids` (indices or UUIDs, possibly shortened)
/// in their order; if empty, those selected by the kind's variable in `env`.
ACCELERATE_INTERNAL GpuInventory usable_gpus(
    const std::vector<GpuKind>& kinds,
    const EnvLookup& env,
    const std::vector<std::string>& ids = {});

/// "2 x NVIDIA H200" or "CPU", for tables.
ACCELERATE_INTERNAL std::string describe_gpus(const std::vector<Gpu>& gpus);

} // namespace accelerate
