// SPDX-License-Identifier: Apache-2.0
// Ranks as a grid of named dimensions.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process_group.h"

namespace accelerate {

struct ACCELERATE_API MeshDimension {
  std::string name = {};
  int size = 1;
  bool operator==(const MeshDimension&) const = default;
};

/// The ranks of a group, laid out row by row: of the last dimension neighbours
/// are neighbours in rank. Loaders, engines and the program read one and the
/// same mesh. Copies share their groups.
///
///     using accelerate::ReduceOp;
///     // 8 ranks: 2 replicas of a model that lies on 4 ranks each.
///     accelerate::Mesh mesh(group, {{"replicate", 2}, {"shard", 4}});
///     mesh.group("shard").reduce_scatter(mine, gradient, ReduceOp::kSum);
///     mesh.group("replicate").all_reduce(mine, ReduceOp::kSum);
///
/// Names are free. `kReplicate` and `kShard` are those along which ranks see
/// different data; ranks that differ in other dimensions only (tensor, context)
/// see the same.
class ACCELERATE_API Mesh {
 public:
  static constexpr const char* kReplicate = "replicate";
  static constexpr const char* kShard = "shard";

  /// One rank alone: `kReplicate` of size 1.
  Mesh();
  /// Every rank of `group` makes the mesh at the same time, alike. Throws, on
  /// every rank, `MismatchError` where dimensions differ between ranks,
  /// `UsageError` where a name is empty or given twice, a size is below 1, or
  /// the sizes do not multiply to the group's size. `kReplicate` of all ranks
  /// as the only dimension asks nobody: a rank may make it alone.
  Mesh(ProcessGroup group, std::vector<MeshDimension> dimensions);

  const std::vector<MeshDimension>& dimensions() const { return dimensions_; }
  /// All ranks.
  const ProcessGroup& group() const { return group_; }

  /// A name that the mesh does not have is a dimension of size 1: coordinate 0,
  /// a group of one.
  int size(const std::string& name) const;
  /// Where this rank stands along the dimension.
  int coordinate(const std::string& name) const;
  /// The ranks that differ from this one in that dimension alone, in the order
  /// of their coordinates.
  const ProcessGroup& group(const std::string& name) const;

  /// The ranks that see different data: `kReplicate` and `kShard` as one, in
  /// rank order. Its `rank()` and `world_size()` are what a loader shards by.
  const ProcessGroup& data() const { return data_; }

 private:
  ProcessGroup group_;
  std::vector<MeshDimension> dimensions_;
  std::vector<ProcessGroup> groups_;
  ProcessGroup data_;
};

} // namespace accelerate
