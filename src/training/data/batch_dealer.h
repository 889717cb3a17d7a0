// SPDX-License-Identifier: Apache-2.0
// How whole batches that one rank reads are distributed over ranks. Computes
// only rows and reads no data.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/data/samplers.h"
#include "core/base/internal.h"

namespace accelerate {

/// Distributes the batches of an epoch in rounds. A round has one batch per
/// rank, or one batch that is split into equal shares. A round whose samples
/// are not divisible is shortened (`drop_last`) or completed with the first
/// samples of the first round.
///
/// Used by one thread, for one epoch.
class ACCELERATE_INTERNAL BatchDealer {
 public:
  /// `num_samples` rows, starting at row `first` of the round's concatenated
  /// samples and the repeats that complete it. The first `num_real` of these
  /// rows are not repeats.
  struct Slice {
    int64_t first = 0;
    int64_t num_samples = 0;
    int64_t num_real = 0;
  };
  struct Turn {
    /// The number of samples that were read.
    int64_t num_samples = 0;
    /// Samples of the first round (possibly this one) that complete this one.
    std::vector<int64_t> repeated;
    /// One slice per rank. All have the same length.
    std::vector<Slice> slices;
    /// Whether rank r gets exactly batch r of the round.
    bool is_even = false;
    /// Whether to keep the batches of this round, because they may complete
    /// later rounds.
    bool is_kept = false;
  };

  /// Throws `UsageError` if `world_size` is below 1.
  BatchDealer(bool split_batches, bool drop_last, int world_size);

  /// How many batches to read per round.
  int64_t batches_per_turn() const;
  /// The number of rounds in an epoch of `num_batches`. A last round with too
  /// few batches is not counted.
  int64_t num_turns(int64_t num_batches) const;
  /// Distributes the next round, whose batches have these sizes.
  Turn deal(const std::vector<int64_t>& sizes);

 private:
  bool split_batches_;
  /// Rounds over units of one: batches of an epoch, or samples of a round.
  detail::Rounds rounds_;
  /// How many samples of the first round may be repeated.
  int64_t num_kept_ = 0;
};

} // namespace accelerate
