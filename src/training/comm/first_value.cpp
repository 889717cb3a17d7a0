// SPDX-License-Identifier: Apache-2.0
#include "training/comm/first_value.h"

#include "training/comm/process_group_impl.h"

namespace accelerate {

std::string first_value(
    const ProcessGroup& group,
    const std::string& key,
    const std::string& value) {
  if (group.world_size() == 1) {
    return value;
  }
  const auto backend = group.impl()->group();
  const auto store = backend ? backend->getStore() : nullptr;
  if (!store) {
    return {};
  }
  std::string first;
  group.guard(
      "connect", [&] { first = store->compareSet(key, std::string(), value); });
  return first;
}

} // namespace accelerate
