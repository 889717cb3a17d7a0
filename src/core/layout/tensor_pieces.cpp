// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/tensor_pieces.h"

#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/layout/tensor_shape.h"

namespace accelerate {
namespace {

std::string text_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const auto number : numbers) {
    text += str_cat(text.empty() ? "" : ", ", number);
  }
  return "[" + text + "]";
}

bool is_inside(const std::vector<std::int64_t>& shape, const TensorBox& box) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) {
    return false;
  }
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.begin[i] < 0 || box.size[i] < 0 || box.size[i] > shape[i] ||
        box.begin[i] > shape[i] - box.size[i]) {
      return false;
    }
  }
  return true;
}

} // namespace

TensorPieces flat_range(
    const std::vector<std::int64_t>& shape,
    std::int64_t begin,
    std::int64_t count) {
  if (count == 0) {
    return {};
  }
  return {{{std::vector<std::int64_t>(shape.size(), 0), shape}, begin, count}};
}

std::int64_t num_elements(const TensorPieces& pieces) {
  std::int64_t sum = 0;
  for (const auto& piece : pieces) {
    sum += piece.count;
  }
  return sum;
}

void check_pieces(
    const std::vector<std::int64_t>& shape,
    const TensorPieces& pieces) {
  if (!elements_of(shape)) {
    throw UsageError(str_cat(
        "The shape ",
        text_of(shape),
        " has a negative dimension or too many elements"));
  }
  std::int64_t sum = 0;
  for (const auto& [box, begin, count] : pieces) {
    if (!is_inside(shape, box)) {
      throw UsageError(str_cat(
          "A box of size ",
          text_of(box.size),
          " at ",
          text_of(box.begin),
          " is outside a tensor of shape ",
          text_of(shape)));
    }
    const auto num_in_box = *elements_of(box.size);
    if (begin < 0 || count < 0 || count > num_in_box ||
        begin > num_in_box - count) {
      throw UsageError(str_cat(
          count,
          " elements from position ",
          begin,
          " are outside a box of ",
          num_in_box,
          " elements"));
    }
    if (__builtin_add_overflow(sum, count, &sum)) {
      throw UsageError("The pieces have too many elements");
    }
  }
}

} // namespace accelerate
