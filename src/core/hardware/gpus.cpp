// SPDX-License-Identifier: Apache-2.0
#include "core/hardware/gpus.h"

#include "core/base/str.h"
#include "core/hardware/gpu_kinds.h"

namespace accelerate {

const std::vector<GpuKind>& gpu_kinds() {
  static const std::vector<GpuKind> kinds = {nvidia_gpus()};
  return kinds;
}

GpuInventory list_gpus(const std::vector<GpuKind>& kinds) {
  std::string problem;
  for (const auto& kind : kinds) {
    auto found = kind.list();
    if (!found.gpus.empty()) {
      found.kind = &kind;
      return found;
    }
    problem += (problem.empty() ? "" : "; ") + found.problem;
  }
  return {.problem = problem};
}

GpuInventory usable_gpus(
    const std::vector<GpuKind>& kinds,
    const EnvLookup& env,
    const std::vector<std::string>& ids) {
  auto inventory = list_gpus(kinds);
  if (inventory.kind == nullptr) {
    return inventory;
  }
  auto choice = env(inventory.kind->visibility_variable);
  if (!ids.empty()) {
    choice.emplace();
    for (const auto& id : ids) {
      *choice += (choice->empty() ? "" : ",") + id;
    }
  }
  if (choice) {
    inventory.gpus = inventory.kind->choose(inventory.gpus, *choice);
    if (inventory.gpus.empty()) {
      inventory.problem =
          str_cat("the selection '", *choice, "' matches no GPU");
    }
  }
  return inventory;
}

std::string describe_gpus(const std::vector<Gpu>& gpus) {
  return gpus.empty() ? "CPU" : str_cat(gpus.size(), " x ", gpus[0].name);
}

} // namespace accelerate
