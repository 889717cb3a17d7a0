// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, seen without torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

struct Gpu {
  int index = 0;
  std::string name = {};
  /// "GPU-" and a UUID with NVIDIA's.
  std::string uuid = {};
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;
  /// "0000:1b:00.0", as in /sys/bus/pci/devices.
  std::string pci_address = {};
  /// Unset where the machine does not say.
  std::optional<int> numa_node = {};
  /// Indices of the GPUs whose memory this one reads without the CPU.
  std::vector<int> peers = {};
};

struct GpuKind;

struct GpuInventory {
  std::vector<Gpu> gpus = {};
  /// "570.86.10"; empty where there is no driver.
  std::string driver = {};
  /// Why there are none; empty where there are some.
  std::string problem = {};
  /// Of all of them: a row of `gpu_kinds()`; null where there are none.
  const GpuKind* kind = nullptr;
};

/// Every GPU of the first of `kinds` (`gpu_kinds()`, but for tests) that this
/// machine has, in PCI order. Drivers are asked by a short-lived child process:
/// no context is made, nothing is linked, and none of their threads stays.
/// Never throws: a machine without GPUs has an empty list.
ACCELERATE_API GpuInventory list_gpus(const std::vector<GpuKind>& kinds);

/// Those of them that workers may use: `ids` (indices or UUIDs, also shortened
/// ones) in their order; where it is empty, those that the kind's variable in
/// `env` chooses.
ACCELERATE_API GpuInventory usable_gpus(
    const std::vector<GpuKind>& kinds,
    const EnvLookup& env,
    const std::vector<std::string>& ids = {});

/// "2 x NVIDIA H200" or "CPU": one phrase for tables.
ACCELERATE_API std::string describe_gpus(const std::vector<Gpu>& gpus);

} // namespace accelerate
