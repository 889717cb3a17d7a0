// SPDX-License-Identifier: Apache-2.0
#include "text/truncation.h"

#include <algorithm>

#include "core/base/str.h"

namespace accelerate::text {
namespace {

std::vector<TokenRange>
cut(const Truncation& truncation, size_t size, size_t length) {
  if (size <= length) {
    return {{0, size}};
  }
  if (length == 0) {
    return {{0, 0}, {0, size}};
  }
  const auto stride = static_cast<size_t>(truncation.stride);
  if (stride >= length) {
    throw UsageError(str_cat(
        "[Tokenizer::encode] truncation.stride is ",
        stride,
        ". Pass a stride smaller than ",
        length,
        ", the number of tokens that truncation keeps"));
  }
  std::vector<TokenRange> ranges;
  const size_t step = length - stride;
  for (size_t done = 0; done < size; done += step) {
    const size_t end = std::min(done + length, size);
    ranges.push_back(
        truncation.direction == TextSide::kRight
            ? TokenRange{done, end}
            : TokenRange{size - end, size - done});
    if (end == size) {
      break;
    }
  }
  return ranges;
}

// The remaining lengths of two texts if the longer one is truncated first.
std::pair<size_t, size_t> share(size_t capacity, size_t first, size_t second) {
  const bool is_swapped = first > second;
  size_t small = std::min(first, second);
  size_t large = small > capacity ? small : std::max(small, capacity - small);
  if (small + large > capacity) {
    small = capacity / 2;
    large = small + capacity % 2;
  }
  return is_swapped ? std::pair{large, small} : std::pair{small, large};
}

size_t left_of(size_t size, size_t excess, const char* which) {
  if (size <= excess) {
    throw UsageError(str_cat(
        "[Tokenizer::encode] The ",
        which,
        " text has ",
        size,
        " tokens, but truncation.max_length requires removing ",
        excess,
        ". Raise max_length, or choose the strategy kLongestFirst"));
  }
  return size - excess;
}

} // namespace

TruncatedRanges truncate(
    const Truncation& truncation,
    size_t capacity,
    size_t first_size,
    size_t second_size,
    bool is_pair) {
  using Strategy = Truncation::Strategy;
  second_size = is_pair ? second_size : 0;
  const size_t total = first_size + second_size;
  if (truncation.strategy == Strategy::kNone || total <= capacity) {
    return {{{0, first_size}}, {{0, second_size}}};
  }
  size_t first = first_size;
  size_t second = second_size;
  if (capacity == 0) {
    first = second = 0;
  } else if (truncation.strategy == Strategy::kOnlyFirst) {
    first = left_of(first_size, total - capacity, "first");
  } else if (truncation.strategy == Strategy::kOnlySecond) {
    if (!is_pair) {
      throw UsageError(
          "[Tokenizer::encode] truncation.strategy is kOnlySecond, but there "
          "is only one text. Pass a pair or choose another strategy");
    }
    second = left_of(second_size, total - capacity, "second");
  } else if (is_pair) {
    std::tie(first, second) = share(capacity, first_size, second_size);
  } else {
    first = capacity;
  }
  return {
      cut(truncation, first_size, first), cut(truncation, second_size, second)};
}

} // namespace accelerate::text
