// SPDX-License-Identifier: Apache-2.0
// Splits a list into contiguous parts, one per rank.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/data/samplers.h"
#include "core/base/internal.h"

namespace accelerate {

/// The indices of this rank's share of `size` elements. If the size is not
/// divisible, the first ranks get one more. With `apply_padding`, the last
/// element is repeated so that all shares have the same size.
ACCELERATE_INTERNAL std::vector<int64_t>
even_split(int64_t size, ShardOptions shard, bool apply_padding);

} // namespace accelerate
