// SPDX-License-Identifier: Apache-2.0
// The processor cores of this machine and how they are grouped.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The cores that this process may run on, in order; at least one.
ACCELERATE_API std::vector<int> allowed_cores();

/// Cores with memory of their own.
struct NumaNode {
  int number = 0;
  std::vector<int> cores = {};
};

/// The NUMA nodes that have allowed cores, by number; numbers may have gaps.
/// One node with all cores where the machine does not say. `system` is where
/// the kernel lists them.
ACCELERATE_API std::vector<NumaNode> numa_nodes(
    const std::filesystem::path& system = "/sys/devices/system/node");

/// "0-3,8" as 0, 1, 2, 3, 8: the kernel's way to write sets of cores. Text
/// that is not such a list ends it.
ACCELERATE_API std::vector<int> parse_core_list(const std::string& text);

/// The processor's name, empty where unknown.
ACCELERATE_API std::string processor_name();

} // namespace accelerate
