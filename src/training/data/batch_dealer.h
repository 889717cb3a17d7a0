// SPDX-License-Identifier: Apache-2.0
// How whole batches that one rank reads are distributed over ranks: only rows,
// no data.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/data/samplers.h"
#include "core/base/internal.h"

namespace accelerate {

/// Distributes the batches of an epoch in rounds: one batch per rank in every
/// round, or one that is split into equal parts. A round whose samples are not
/// divisible is shortened (`drop_last`) or filled up with the first samples of
/// the first round.
///
/// Used by one thread, for one epoch.
class ACCELERATE_INTERNAL BatchDealer {
 public:
  /// The rows `num_samples` from `first` on, of a round's concatenated samples
  /// and those that fill it up. The first `num_real` are not repeats.
  struct Slice {
    int64_t first = 0;
    int64_t num_samples = 0;
    int64_t num_real = 0;
  };
  struct Turn {
    /// Samples that were read.
    int64_t num_samples = 0;
    /// Samples of the first round (possibly this one) that fill this one up.
    std::vector<int64_t> repeated;
    /// One per rank, of equal length.
    std::vector<Slice> slices;
    /// Each rank's part is the batch with its number.
    bool is_even = false;
    /// Keep its batches, because they may fill up later rounds.
    bool is_kept = false;
  };

  /// Throws `UsageError` if `world_size` is below 1.
  BatchDealer(bool split_batches, bool drop_last, int world_size);

  /// Batches to read per round.
  int64_t batches_per_turn() const;
  /// The number of rounds in an epoch of `num_batches`. A last round with too
  /// few batches does not count.
  int64_t num_turns(int64_t num_batches) const;
  /// The next round, for batches of these sizes.
  Turn deal(const std::vector<int64_t>& sizes);

 private:
  bool split_batches_;
  /// Of single units: batches of an epoch, samples of a round.
  detail::Rounds rounds_;
  /// Samples of the first round that may be repeated.
  int64_t num_kept_ = 0;
};

} // namespace accelerate
