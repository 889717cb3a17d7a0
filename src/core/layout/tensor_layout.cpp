// SPDX-License-Identifier: Apache-2.0
#include "core/layout/tensor_layout.h"

#include <algorithm>
#include <numeric>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/layout/tensor_shape.h"

namespace accelerate {
namespace {

struct AxisPosition {
  int size = 1;
  int coordinate = 0;
};

void divide(
    std::vector<TensorBox>& boxes,
    const DimShard& shard,
    const AxisPosition& position) {
  std::vector<TensorBox> own;
  for (const auto& box : boxes) {
    if (shard.dim < 0 ||
        shard.dim >= static_cast<std::int64_t>(box.size.size())) {
      throw UsageError(str_cat(
          "[layout] A tensor with ",
          box.size.size(),
          " dimensions has no dimension ",
          shard.dim,
          " to shard"));
    }
    const auto dim = static_cast<std::size_t>(shard.dim);
    const auto length = box.size[dim];
    const auto blocks =
        shard.blocks.empty() ? std::vector<std::int64_t>{length} : shard.blocks;
    const auto sum =
        std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
    if (sum != length || *std::min_element(blocks.begin(), blocks.end()) < 0) {
      throw UsageError(str_cat(
          "[layout] Blocks with a total length of ",
          sum,
          " do not divide a dimension of length ",
          length));
    }
    auto first = box.begin[dim];
    for (const auto block : blocks) {
      const auto chunk = (block + position.size - 1) / position.size;
      const auto begin = std::min(block, chunk * position.coordinate);
      auto mine = box;
      mine.begin[dim] = first + begin;
      mine.size[dim] = std::min(chunk, block - begin);
      own.push_back(std::move(mine));
      first += block;
    }
  }
  boxes = std::move(own);
}

/// The elements from `begin` to `end` of the concatenated boxes.
TensorPieces range_of(
    const std::vector<TensorBox>& boxes,
    std::int64_t begin,
    std::int64_t end) {
  TensorPieces pieces;
  std::int64_t first = 0;
  for (const auto& box : boxes) {
    const auto num = *elements_of(box.size);
    const auto from = std::clamp(begin - first, std::int64_t{0}, num);
    const auto to = std::clamp(end - first, from, num);
    if (to > from) {
      pieces.push_back({box, from, to - from});
    }
    first += num;
  }
  return pieces;
}

} // namespace

MeshDimension TensorLayout::divided_along() const {
  MeshDimension along = {};
  for (const auto& placement : placements) {
    if (!std::holds_alternative<Partial>(placement.how)) {
      along = along | placement.along;
    }
  }
  return along;
}

TensorPieces pieces_of(
    const std::vector<std::int64_t>& shape,
    const TensorLayout& layout,
    const MeshShape& mesh,
    int rank) {
  const auto num_all = elements_of(shape);
  if (!num_all) {
    throw UsageError(
        "[layout] The shape has a negative dimension or too many elements");
  }
  const auto& stages = layout.stages;
  const int stage = mesh.coordinate(rank, MeshDimension::kPipeline);
  if (!stages.empty() &&
      std::find(stages.begin(), stages.end(), stage) == stages.end()) {
    return {};
  }
  std::vector<TensorBox> boxes = {
      {std::vector<std::int64_t>(shape.size(), 0), shape}};
  std::int64_t begin = 0;
  std::int64_t end = *num_all;
  MeshDimension used = {};
  bool is_flat = false;
  for (const auto& [along, how] : layout.placements) {
    if (is_flat || (used & along) != MeshDimension()) {
      throw UsageError(
          "[layout] A flat shard must be the last placement, and no two "
          "placements may be along the same dimension");
    }
    used = used | along;
    const AxisPosition position = {
        mesh.size(along), mesh.coordinate(rank, along)};
    if (const auto* dim = std::get_if<DimShard>(&how)) {
      divide(boxes, *dim, position);
    } else if (const auto* flat = std::get_if<FlatShard>(&how)) {
      is_flat = true;
      const auto last = flat->share * position.size - flat->offset;
      const auto num = num_elements(range_of(boxes, 0, *num_all));
      if (flat->offset < 0 || flat->share < 0 || num > last) {
        throw UsageError(str_cat(
            "[layout] ",
            position.size,
            " shards of ",
            flat->share,
            " elements cannot hold ",
            num,
            " elements from position ",
            flat->offset));
      }
      begin = std::max<std::int64_t>(
          flat->share * position.coordinate - flat->offset, 0);
      end = flat->share * (position.coordinate + 1) - flat->offset;
    }
  }
  return range_of(boxes, begin, end);
}

} // namespace accelerate
