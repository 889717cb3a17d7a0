// SPDX-License-Identifier: Apache-2.0
// The NVIDIA GPUs of this machine, seen without CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

struct Gpu {
  int index = 0;
  std::string name = {};
  /// "GPU-" and a UUID.
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

struct GpuInventory {
  std::vector<Gpu> gpus = {};
  /// "570.86.10"; empty where there is no driver.
  std::string driver = {};
  /// Why there are none; empty where there are some.
  std::string problem = {};
};

/// Every GPU that the driver shows, in PCI order. Asks NVIDIA's management
/// library, loaded by a short-lived child process: no CUDA context is made,
/// nothing is linked, and none of its threads stays. Never throws: a machine
/// without GPUs has an empty list.
ACCELERATE_API GpuInventory list_gpus();

/// Those that `ids` chooses (indices or UUIDs, also shortened ones), in its
/// order; all where it is unset. As CUDA reads CUDA_VISIBLE_DEVICES, the list
/// ends before the first id that is unknown.
ACCELERATE_API std::vector<Gpu> choose_gpus(
    const std::vector<Gpu>& gpus,
    const std::optional<std::string>& ids);

/// "2 x NVIDIA H200" or "CPU": one phrase for tables.
ACCELERATE_API std::string describe_gpus(const std::vector<Gpu>& gpus);

} // namespace accelerate
