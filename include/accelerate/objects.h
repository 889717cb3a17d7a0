// SPDX-License-Identifier: Apache-2.0
// Values that are no tensors, between ranks.
#pragma once

#include <string>
#include <vector>

#include "accelerate/detail/tree_bytes.h"
#include "accelerate/process_group.h"

namespace accelerate {

/// Everybody's objects in rank order. `to_bytes` gives a `std::string` of one,
/// from which `from_bytes` makes it again. A collective; ranks may have
/// different numbers of objects.
template <class T, class ToBytes, class FromBytes>
std::vector<T> gather_objects(
    const ProcessGroup& group,
    const std::vector<T>& objects,
    ToBytes&& to_bytes,
    FromBytes&& from_bytes) {
  std::vector<std::string> own;
  for (const auto& object : objects) {
    own.push_back(to_bytes(object));
  }
  std::vector<T> all;
  for (const auto& part : group.all_gather_bytes(tree::to_bytes(own))) {
    for (auto& bytes : tree::from_bytes<std::vector<std::string>>(part)) {
      all.push_back(from_bytes(bytes));
    }
  }
  return all;
}
/// Of numbers, strings, containers and structs of them.
template <tree::PlainObject T>
std::vector<T> gather_objects(
    const ProcessGroup& group,
    const std::vector<T>& objects) {
  return gather_objects(group, objects, tree::to_bytes<T>, tree::from_bytes<T>);
}

} // namespace accelerate
