// SPDX-License-Identifier: Apache-2.0
// Gathers objects that are not tensors.
#pragma once

#include <string>
#include <vector>

#include "accelerate/detail/tree_bytes.h"
#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// Returns the objects of all ranks, in rank order. `to_bytes` serialises an
/// object to a `std::string`, and `from_bytes` restores it. Collective. Ranks
/// may have different numbers of objects.
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
  for (const auto& of_rank : group.all_gather_bytes(tree::to_bytes(own))) {
    for (auto& bytes : tree::from_bytes<std::vector<std::string>>(of_rank)) {
      all.push_back(from_bytes(bytes));
    }
  }
  return all;
}
/// Gathers numbers, strings, and containers and structs of them. Collective.
template <tree::PlainObject T>
std::vector<T> gather_objects(
    const ProcessGroup& group,
    const std::vector<T>& objects) {
  return gather_objects(group, objects, tree::to_bytes<T>, tree::from_bytes<T>);
}

} // namespace accelerate
