// SPDX-License-Identifier: Apache-2.0
#include "accelerate/mesh.h"

#include <algorithm>
#include <set>

#include "accelerate/error.h"
#include "base/str.h"
#include "comm/agreement.h"

namespace accelerate {
namespace {

std::string to_text(const std::vector<MeshDimension>& dimensions) {
  std::string text;
  for (const auto& [name, size] : dimensions) {
    text += str_cat(text.empty() ? "" : " x ", "'", name, "' of ", size);
  }
  return text.empty() ? "A mesh without dimensions" : text;
}

void check(const std::vector<MeshDimension>& dimensions, int world_size) {
  std::set<std::string> names;
  int64_t num_ranks = 1;
  const char* fault = nullptr;
  for (const auto& [name, size] : dimensions) {
    fault = name.empty()                 ? "Give every dimension a name"
            : !names.insert(name).second ? "Give every dimension its own name"
            : size < 1                   ? "Use sizes of at least 1"
                                         : fault;
    // Bounded, so that no product overflows.
    num_ranks = std::min<int64_t>(num_ranks * std::max(size, 1), 1LL << 31);
  }
  if (fault != nullptr || num_ranks != world_size) {
    throw UsageError(str_cat(
        "[Mesh] ",
        to_text(dimensions),
        " does not describe ",
        world_size,
        world_size == 1 ? " rank. " : " ranks. ",
        fault != nullptr
            ? fault
            : str_cat("The product of the sizes must be ", world_size)));
  }
}

/// Ranks whose coordinates are those of `rank` but in the `free` dimensions,
/// in rank order.
std::vector<int> neighbours(
    const std::vector<MeshDimension>& dimensions,
    const std::vector<bool>& free,
    int rank) {
  std::vector<int> ranks = {0};
  int stride = 1;
  for (size_t i = dimensions.size(); i-- > 0;) {
    const int size = dimensions[i].size;
    const int own = rank / stride % size;
    std::vector<int> wider;
    for (int at = free[i] ? 0 : own; at <= (free[i] ? size - 1 : own); ++at) {
      for (const int inner : ranks) {
        wider.push_back(at * stride + inner);
      }
    }
    ranks = std::move(wider);
    stride *= size;
  }
  return ranks;
}

} // namespace

Mesh::Mesh() : Mesh(ProcessGroup(), {{kReplicate, 1}}) {}

Mesh::Mesh(ProcessGroup group, std::vector<MeshDimension> dimensions)
    : group_(std::move(group)), dimensions_(std::move(dimensions)) {
  // Every run has this one by itself: a rank may make an Accelerator alone.
  const std::vector<MeshDimension> of_every_run = {
      {kReplicate, group_.world_size()}};
  if (dimensions_ != of_every_run) {
    agree_on_text(group_, "Mesh", to_text(dimensions_));
  }
  check(dimensions_, group_.world_size());
  // The sizes alone say whether ranks have to meet for it.
  const auto make = [&](const std::vector<bool>& free) {
    const auto ranks = neighbours(dimensions_, free, group_.rank());
    return static_cast<int>(ranks.size()) == group_.world_size() ? group_
           : ranks.size() == 1 ? ProcessGroup()
                               : group_.subgroup(ranks);
  };
  std::vector<bool> sees_other_data;
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    const auto& name = dimensions_[i].name;
    std::vector<bool> free(dimensions_.size());
    free[i] = true;
    groups_.push_back(make(free));
    sees_other_data.push_back(name == kReplicate || name == kShard);
  }
  // One dimension of data alone has its group already.
  const auto num_free =
      std::count(sees_other_data.begin(), sees_other_data.end(), true);
  const auto only =
      std::find(sees_other_data.begin(), sees_other_data.end(), true);
  data_ = num_free == 1
              ? groups_[static_cast<size_t>(only - sees_other_data.begin())]
              : make(sees_other_data);
}

int Mesh::size(const std::string& name) const {
  return group(name).world_size();
}

int Mesh::coordinate(const std::string& name) const {
  return group(name).rank();
}

const ProcessGroup& Mesh::group(const std::string& name) const {
  static const ProcessGroup alone;
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) {
      return groups_[i];
    }
  }
  return alone;
}

} // namespace accelerate
