// SPDX-License-Identifier: Apache-2.0
// One rank's part of a list that is cut into contiguous parts.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/samplers.h"

namespace accelerate {

/// The indices of this rank's part of `size` elements; the first ranks get one
/// more where the size does not divide. With `apply_padding` the last of all is
/// repeated so that all parts are equally long.
ACCELERATE_API std::vector<int64_t>
even_part(int64_t size, ShardOptions shard, bool apply_padding);

} // namespace accelerate
