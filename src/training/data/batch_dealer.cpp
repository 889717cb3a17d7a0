// SPDX-License-Identifier: Apache-2.0
#include "training/data/batch_dealer.h"

#include <algorithm>
#include <numeric>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

BatchDealer::BatchDealer(bool split_batches, bool drop_last, int world_size)
    : split_batches_(split_batches),
      rounds_{
          .per_rank = 1,
          .drop_last = drop_last,
          .shard = {.world_size = world_size}} {
  if (world_size < 1) {
    throw UsageError(str_cat(
        "[BatchDealer] world_size is ", world_size, ", expected at least 1"));
  }
}

int64_t BatchDealer::batches_per_turn() const {
  return split_batches_ ? 1 : rounds_.round_size();
}

int64_t BatchDealer::num_turns(int64_t num_batches) const {
  return split_batches_ ? num_batches : rounds_.num_batches(num_batches);
}

BatchDealer::Turn BatchDealer::deal(const std::vector<int64_t>& sizes) {
  const int64_t world_size = rounds_.round_size();
  Turn turn;
  turn.num_samples = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  turn.is_kept = num_kept_ == 0 && !rounds_.drop_last;
  if (turn.is_kept) {
    // A round lacks fewer samples than there are ranks, so a few are enough.
    num_kept_ = std::min(turn.num_samples, world_size);
  }
  turn.is_even = static_cast<int64_t>(sizes.size()) == world_size &&
                 std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) {
                   return size == sizes[0];
                 });
  const int64_t per_rank = rounds_.num_batches(turn.num_samples);
  for (int64_t i = 0; i < per_rank * world_size - turn.num_samples; ++i) {
    turn.repeated.push_back(i % num_kept_);
  }
  for (int64_t rank = 0; rank < world_size; ++rank) {
    const int64_t first = rank * per_rank;
    turn.slices.push_back(
        {.first = first,
         .num_samples = per_rank,
         .num_real =
             std::clamp<int64_t>(turn.num_samples - first, 0, per_rank)});
  }
  return turn;
}

} // namespace accelerate
