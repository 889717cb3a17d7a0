// SPDX-License-Identifier: Apache-2.0
// The ranks of a run as a grid. This header does not need torch.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// A dimension of the mesh, or several dimensions joined with `|`. A mesh has
/// all six dimensions, in this order. Consecutive ranks differ along `kTensor`.
enum class MeshDimension : unsigned {
  kPipeline = 1,  ///< Stages of the model.
  kReplicate = 2, ///< Copies of the model.
  kShard = 4,     ///< Shards of one copy (ZeRO, FSDP).
  kContext = 8,   ///< Parts of a sequence, including attention.
  kSequence = 16, ///< Parts of a sequence, except in attention.
  kTensor = 32,   ///< Parts of a layer.
  /// Ranks that differ in these dimensions see different data. Other ranks see
  /// the same batches.
  kData = kReplicate | kShard,
};

constexpr MeshDimension operator|(MeshDimension one, MeshDimension other) {
  return static_cast<MeshDimension>(
      static_cast<unsigned>(one) | static_cast<unsigned>(other));
}
constexpr MeshDimension operator&(MeshDimension one, MeshDimension other) {
  return static_cast<MeshDimension>(
      static_cast<unsigned>(one) & static_cast<unsigned>(other));
}

/// The number of ranks along each dimension. If `replicate` or `shard` is 0,
/// its size is computed from the number of ranks and the other sizes. If both
/// are 0, `replicate` is computed and `shard` is 1.
struct ACCELERATE_API MeshSizes {
  int pipeline = 1;
  int replicate = 0;
  int shard = 0;
  int context = 1;
  int sequence = 1;
  int tensor = 1;
  bool operator==(const MeshSizes&) const = default;
};

/// Returns the sizes other than 1, such as "replicate any x tensor 2". "any"
/// stands for a size that is computed. Returns "1" if there are no such sizes.
ACCELERATE_API std::string to_text(const MeshSizes& sizes);

/// The position of each rank in a mesh. It contains only numbers, so every
/// rank, and a program that plans a run, computes the same positions. `Mesh`
/// (mesh.h) adds process groups.
///
///     using accelerate::MeshDimension;
///     // 8 ranks: 2 copies of a model, each in shards on 4 ranks.
///     accelerate::MeshShape mesh({.replicate = 2, .shard = 4}, 8);
///     mesh.coordinate(6, MeshDimension::kShard);  // 2
///     mesh.ranks(6, MeshDimension::kReplicate);   // 2, 6
///     mesh.coordinate(6, MeshDimension::kData);   // 6
class ACCELERATE_API MeshShape {
 public:
  /// A mesh of one rank.
  MeshShape() : MeshShape(MeshSizes(), 1) {}
  /// Throws `ConfigError` if a size is below 1, except for the zeros of
  /// `MeshSizes`, or if the product of the sizes is not `num_ranks`.
  MeshShape(const MeshSizes& sizes, int num_ranks);

  /// The sizes that were passed, with each 0 replaced with the computed size.
  MeshSizes sizes() const;
  /// The number of ranks that differ only in these dimensions.
  int size(MeshDimension dimensions) const;
  int num_ranks() const;
  /// The position of `rank` in these dimensions, from 0. Joined dimensions
  /// count as one dimension, in which the last one varies fastest.
  int coordinate(int rank, MeshDimension dimensions) const;
  /// The ranks that differ from `rank` only in these dimensions, and `rank`
  /// itself. They are in ascending order, which is also the order of their
  /// coordinates.
  std::vector<int> ranks(int rank, MeshDimension dimensions) const;

  bool operator==(const MeshShape&) const = default;

 private:
  std::array<int, 6> sizes_;
};

} // namespace accelerate
