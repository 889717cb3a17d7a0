// SPDX-License-Identifier: Apache-2.0
// Which tokens of one or two texts stay.
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

/// For each of two texts what stays, then what overflows, in order.
struct TruncatedRanges {
  std::vector<TokenRange> first;
  std::vector<TokenRange> second;
};

/// `room`: how many tokens of the texts may stay. Throws `UsageError` where
/// `truncation` cannot be met. Without a pair `second_size` is ignored.
TruncatedRanges truncate(
    const Truncation& truncation,
    size_t room,
    size_t first_size,
    size_t second_size,
    bool is_pair);

} // namespace accelerate::text
