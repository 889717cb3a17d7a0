// SPDX-License-Identifier: Apache-2.0
// Process groups along the dimensions of a mesh.
#pragma once

#include <map>
#include <vector>

#include "accelerate/distributed/mesh_shape.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"

namespace accelerate {

/// This rank's position in a mesh, with a process group for each dimension.
/// The loaders and engines of a run use the same mesh. Copies share their
/// groups.
///
///     using accelerate::MeshDimension;
///     using accelerate::ReduceOp;
///     // 8 ranks: 2 copies of a model, each in shards on 4 ranks.
///     accelerate::Mesh mesh(group, {.replicate = 2, .shard = 4});
///     const auto& shards = mesh.group(MeshDimension::kShard);
///     shards.reduce_scatter(mine, gradient, ReduceOp::kSum);
///     mesh.group(MeshDimension::kReplicate).all_reduce(mine, ReduceOp::kSum);
class ACCELERATE_API Mesh {
 public:
  /// A mesh of one rank.
  Mesh();
  /// Collective: every rank of `group` passes the same sizes. Throws the same
  /// errors as `MeshShape`. If the sizes differ, throws `MismatchError` on
  /// every rank. Creating a mesh with only a `replicate` dimension does not
  /// communicate, so a single rank may do it.
  Mesh(ProcessGroup group, const MeshSizes& sizes);

  const MeshShape& shape() const { return shape_; }
  /// The group of all ranks.
  const ProcessGroup& group() const { return group_; }
  /// The group of the ranks that differ from this one only in these dimensions,
  /// in the order of their coordinates. A dimension of size 1 has a group of
  /// one. `kData` is the only combination of dimensions that has a group. Other
  /// combinations throw `UsageError`. A loader shards by the rank and size of
  /// `group(kData)`.
  const ProcessGroup& group(MeshDimension dimensions) const;
  /// Groups that together connect the ranks that differ only in these
  /// dimensions. Reducing over each group in turn reduces over all these ranks.
  std::vector<const ProcessGroup*> groups(MeshDimension dimensions) const;

  int size(MeshDimension dimensions) const { return shape_.size(dimensions); }
  /// The position of this rank.
  int coordinate(MeshDimension dimensions) const {
    return shape_.coordinate(group_.rank(), dimensions);
  }

 private:
  ProcessGroup group_;
  MeshShape shape_;
  std::map<MeshDimension, ProcessGroup> groups_;
};

} // namespace accelerate
