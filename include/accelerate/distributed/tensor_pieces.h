// SPDX-License-Identifier: Apache-2.0
// Which elements of a tensor a rank holds.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// A box inside a tensor, given by its start and length in every dimension.
struct ACCELERATE_API TensorBox {
  std::vector<std::int64_t> begin = {};
  std::vector<std::int64_t> size = {};
  bool operator==(const TensorBox&) const = default;
};

/// A range of elements of a box, counted in row-major order inside the box (as
/// in a contiguous tensor of the box's size). The whole box is the range that
/// starts at 0 and contains all its elements.
struct ACCELERATE_API TensorPiece {
  TensorBox box = {};
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool operator==(const TensorPiece&) const = default;
};

/// The elements of a tensor that a rank holds: the elements of all pieces,
/// concatenated. An empty list contains no elements.
///
///     using accelerate::TensorPiece;
///     using accelerate::TensorPieces;
///     // Columns 2 and 3 of a [4, 8] matrix: one box.
///     TensorPieces columns = {{{{0, 2}, {4, 2}}, 0, 8}};
///     // The second half of these, as sharding splits them.
///     TensorPieces half = {{{{0, 2}, {4, 2}}, 4, 4}};
///     // A tensor-parallel rank's part of a fused q, k, v weight: three boxes.
///     TensorPieces heads = {
///         {{{0, 0}, {2, 8}}, 0, 16},
///         {{{4, 0}, {2, 8}}, 0, 16},
///         {{{8, 0}, {2, 8}}, 0, 16}};
using TensorPieces = std::vector<TensorPiece>;

/// Returns the pieces that cover `count` elements of a contiguous tensor of
/// this shape, starting at `begin`. Returns an empty list if `count` is 0.
ACCELERATE_API TensorPieces flat_range(
    const std::vector<std::int64_t>& shape,
    std::int64_t begin,
    std::int64_t count);

/// The total number of elements of the pieces.
ACCELERATE_API std::int64_t num_elements(const TensorPieces& pieces);

/// Throws `UsageError` if a piece exceeds its box, or a box exceeds a tensor of
/// this shape.
ACCELERATE_API void check_pieces(
    const std::vector<std::int64_t>& shape,
    const TensorPieces& pieces);

} // namespace accelerate
