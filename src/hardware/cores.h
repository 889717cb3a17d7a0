// SPDX-License-Identifier: Apache-2.0
// The processor cores of this machine and how they are grouped.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The cores that this process may run on, in order; at least one.
ACCELERATE_API std::vector<int> allowed_cores();

/// The allowed cores of each NUMA node, by its number (empty for nodes without
/// any); one node with all of them where the machine does not say.
ACCELERATE_API std::vector<std::vector<int>> numa_nodes();

/// "0-3,8" as 0, 1, 2, 3, 8: the kernel's way to write sets of cores. Text
/// that is not such a list ends it.
ACCELERATE_API std::vector<int> parse_core_list(const std::string& text);

/// The processor's name, empty where unknown.
ACCELERATE_API std::string processor_name();

} // namespace accelerate
