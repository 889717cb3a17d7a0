// SPDX-License-Identifier: Apache-2.0
#include "training/data/even_split.h"

#include <algorithm>

namespace accelerate {

std::vector<int64_t>
even_split(int64_t size, ShardOptions shard, bool apply_padding) {
  const int64_t rank = shard.rank;
  const int64_t share = size / shard.world_size;
  const int64_t extra = size % shard.world_size;
  const int64_t first = rank * share + std::min(rank, extra);
  const int64_t count = share + (rank < extra ? 1 : 0);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(first + i);
  }
  const int64_t wanted = share + (extra > 0 ? 1 : 0);
  while (apply_padding && size > 0 &&
         static_cast<int64_t>(indices.size()) < wanted) {
    indices.push_back(size - 1);
  }
  return indices;
}

} // namespace accelerate
