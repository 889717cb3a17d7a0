// SPDX-License-Identifier: Apache-2.0
// Which tokens of one or two texts are kept.
#pragma once

#include <cstddef>
#include <vector>

#include "accelerate/text.h"

namespace accelerate::text {

/// Tokens `begin` to `end` of a text.
struct TokenRange {
  size_t begin = 0;
  size_t end = 0;
};

/// For each of two texts, the kept part, followed by the overflowing parts in
/// order.
struct TruncatedRanges {
  std::vector<TokenRange> first;
  std::vector<TokenRange> second;
};

/// Truncates two texts, so that together they keep at most `capacity` tokens.
/// Throws `UsageError` if `truncation` cannot be satisfied. Without a pair,
/// `second_size` is ignored.
TruncatedRanges truncate(
    const Truncation& truncation,
    size_t capacity,
    size_t first_size,
    size_t second_size,
    bool is_pair);

} // namespace accelerate::text
