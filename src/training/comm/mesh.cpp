// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/mesh.h"

#include "accelerate/error.h"
#include "training/comm/agreement.h"

namespace accelerate {
namespace {

/// Ranks do not compare such a mesh: every run has one, and a rank may create
/// an Accelerator alone.
bool is_of_replicas_alone(const MeshSizes& sizes, int num_ranks) {
  auto alone = sizes;
  alone.replicate = 0;
  alone.shard = alone.shard == 1 ? 0 : alone.shard;
  return alone == MeshSizes() &&
         (sizes.replicate == 0 || sizes.replicate == num_ranks);
}

} // namespace

Mesh::Mesh() : Mesh(ProcessGroup(), {}) {}

Mesh::Mesh(ProcessGroup group, const MeshSizes& sizes)
    : group_(std::move(group)) {
  const int num_ranks = group_.world_size();
  if (!is_of_replicas_alone(sizes, num_ranks)) {
    agree_on_text(group_, "Mesh", to_text(sizes));
  }
  shape_ = MeshShape(sizes, num_ranks);
  // Whether ranks create a group together depends only on the sizes.
  const auto make = [&](MeshDimension dimensions) {
    const int size = shape_.size(dimensions);
    return size == num_ranks ? group_
           : size == 1
               ? ProcessGroup()
               : group_.subgroup(shape_.ranks(group_.rank(), dimensions));
  };
  for (const auto dimension :
       {MeshDimension::kPipeline,
        MeshDimension::kReplicate,
        MeshDimension::kShard,
        MeshDimension::kContext,
        MeshDimension::kSequence,
        MeshDimension::kTensor}) {
    groups_[dimension] = make(dimension);
  }
  groups_[MeshDimension::kData] = shape_.size(MeshDimension::kReplicate) == 1
                                      ? groups_[MeshDimension::kShard]
                                  : shape_.size(MeshDimension::kShard) == 1
                                      ? groups_[MeshDimension::kReplicate]
                                      : make(MeshDimension::kData);
}

const ProcessGroup& Mesh::group(MeshDimension dimensions) const {
  const auto found = groups_.find(dimensions);
  if (found == groups_.end()) {
    throw UsageError(
        "[Mesh] These joined dimensions have no process group. Use one "
        "dimension, or kData");
  }
  return found->second;
}

std::vector<const ProcessGroup*> Mesh::groups(MeshDimension dimensions) const {
  if (const auto found = groups_.find(dimensions); found != groups_.end()) {
    return {&found->second};
  }
  std::vector<const ProcessGroup*> groups;
  for (const auto& [dimension, group] : groups_) {
    if (dimension != MeshDimension::kData &&
        (dimension & dimensions) != MeshDimension()) {
      groups.push_back(&group);
    }
  }
  return groups;
}

} // namespace accelerate
