// SPDX-License-Identifier: Apache-2.0
// The processor cores of this machine and their NUMA nodes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// The cores that this process may run on, in order. There is at least one.
ACCELERATE_INTERNAL std::vector<int> allowed_cores();

/// Cores with their own memory.
struct NumaNode {
  int number = 0;
  std::vector<int> cores = {};
};

/// The NUMA nodes with allowed cores, by number. Numbers may have gaps. If the
/// machine does not report nodes, returns a single node with all cores.
/// `system` is the folder in which the kernel lists the nodes.
ACCELERATE_INTERNAL std::vector<NumaNode> numa_nodes(
    const std::filesystem::path& system = "/sys/devices/system/node");

/// Parses "0-3,8" as 0, 1, 2, 3, 8, the kernel's notation for sets of cores.
/// Stops at invalid text.
ACCELERATE_INTERNAL std::vector<int> parse_core_list(const std::string& text);

/// The processor's name. Empty if unknown.
ACCELERATE_INTERNAL std::string processor_name();

} // namespace accelerate
