// SPDX-License-Identifier: Apache-2.0
// Elements of a tensor, collected from pieces of any other layout.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "accelerate/distributed/tensor_pieces.h"
#include "core/base/internal.h"

namespace accelerate {

/// Determines which elements to copy, so that pieces of one layout become those
/// of another. Copies nothing itself: the same plan serves tensors, files and
/// counting.
class ACCELERATE_INTERNAL PieceAssembly {
 public:
  /// Assembles `target`: pieces of a tensor of this shape that `check_pieces`
  /// accepts and that do not overlap.
  PieceAssembly(
      const std::vector<std::int64_t>& shape,
      const TensorPieces& target);

  /// Copies `count` elements: `in_target` and `in_source` count the elements of
  /// all pieces of a side, in their order.
  using Copy = std::function<
      void(std::int64_t in_target, std::int64_t in_source, std::int64_t count)>;
  /// Calls `copy` for every missing element that `source` has. Elements of
  /// earlier sources are not copied again, so replicas cost nothing.
  void add(const TensorPieces& source, const Copy& copy);

  /// How many elements are in no source so far.
  std::int64_t num_missing() const;

  /// Elements that follow each other both in the tensor and in the pieces.
  struct Run {
    std::int64_t in_tensor = 0;
    std::int64_t in_pieces = 0;
    std::int64_t count = 0;
  };
  /// Returns the runs in the order of the tensor.
  static std::vector<Run> runs_of(
      const std::vector<std::int64_t>& shape,
      const TensorPieces& pieces);

 private:
  std::vector<std::int64_t> shape_;
  std::vector<Run> missing_;
};

} // namespace accelerate
