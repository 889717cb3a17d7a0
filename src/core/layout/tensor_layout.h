// SPDX-License-Identifier: Apache-2.0
// Where the elements of a tensor are in a mesh, as data.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "accelerate/distributed/mesh_shape.h"
#include "accelerate/distributed/tensor_pieces.h"
#include "core/base/internal.h"

namespace accelerate {

/// Each rank has a part of one dimension of the tensor. Parts have the same
/// lengths as with `torch.chunk`: all are equal, except that the last ones may
/// be shorter or empty.
struct DimShard {
  std::int64_t dim = 0;
  /// The lengths of blocks that each rank has a part of, such as a fused query,
  /// key and value. Together they are as long as the dimension. Empty for one
  /// block.
  std::vector<std::int64_t> blocks = {};
};

/// Each rank has a range of the elements, as in ZeRO: the tensor begins at
/// `offset` in a buffer of which each rank has `share` elements. Ranks may have
/// different numbers of elements, or none.
struct FlatShard {
  std::int64_t offset = 0;
  std::int64_t share = 0;
};

/// Each rank has all elements, but the values are their sum over the ranks.
struct Partial {};

/// How a tensor is divided among ranks that differ in these dimensions.
struct TensorPlacement {
  MeshDimension along = MeshDimension::kShard;
  std::variant<DimShard, FlatShard, Partial> how = {};
};

enum class TensorMemory { kDevice, kHost, kDisk };

/// How a tensor is divided among ranks, as a list of placements. Each placement
/// divides what the previous ones left. A `FlatShard` comes last. It counts the
/// elements of what it divides, one piece after the other. Ranks that differ in
/// other dimensions have the same elements. `{}` is the whole tensor on every
/// rank.
///     // ZeRO over tensor parallelism: a range of a block of rows.
///     TensorLayout layout = {
///         .placements = {
///             {MeshDimension::kTensor, DimShard{.dim = 0}},
///             {MeshDimension::kShard, FlatShard{64, 512}}}};
struct ACCELERATE_INTERNAL TensorLayout {
  /// The pipeline stages that have the tensor. Empty for all.
  std::vector<int> stages = {};
  std::vector<TensorPlacement> placements = {};
  TensorMemory memory = TensorMemory::kDevice;

  /// The dimensions along which ranks have different elements. A sum over all
  /// elements is a sum over the ranks along these.
  MeshDimension divided_along() const;
  bool is_divided() const { return divided_along() != MeshDimension(); }
};

/// Which elements of a tensor of this shape `rank` has. Throws `UsageError` if
/// the layout does not fit the shape.
ACCELERATE_INTERNAL TensorPieces pieces_of(
    const std::vector<std::int64_t>& shape,
    const TensorLayout& layout,
    const MeshShape& mesh,
    int rank);

} // namespace accelerate
