// SPDX-License-Identifier: Apache-2.0
// How whole batches that one rank reads for all are dealt out: rows, no data.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/samplers.h"

namespace accelerate {

/// Deals the batches of an epoch out in turns: one batch for each rank in every
/// turn, or one that is cut into equal parts. A turn whose samples do not
/// divide is left short (`drop_last`) or filled up with the first samples of
/// the first turn.
///
/// Used by one thread, for one epoch.
class ACCELERATE_API BatchDealer {
 public:
  /// Of a turn's samples one behind the other, and what fills it up behind
  /// them: `num_samples` from `first` on. The first `num_real` were not
  /// repeated.
  struct Part {
    int64_t first = 0;
    int64_t num_samples = 0;
    int64_t num_real = 0;
  };
  struct Turn {
    /// Samples that were read.
    int64_t num_samples = 0;
    /// Samples of the first turn (this one itself, where it is the first) that
    /// fill this one up.
    std::vector<int64_t> repeated;
    /// One for each rank, equally long.
    std::vector<Part> parts;
    /// Each rank's part is the batch of its number.
    bool is_even = false;
    /// Its batches must be kept: they may fill up later turns.
    bool is_kept = false;
  };

  /// Throws `UsageError` where `world_size` is below 1.
  BatchDealer(bool split_batches, bool drop_last, int world_size);

  /// Batches that are read for one turn.
  int64_t batches_per_turn() const;
  /// Turns of an epoch of `num_batches`. None where what was read for a turn
  /// is too little for one.
  int64_t num_turns(int64_t num_batches) const;
  /// The next turn, of batches of these sizes.
  Turn deal(const std::vector<int64_t>& sizes);

 private:
  bool split_batches_;
  /// Of single units: batches of an epoch, samples of a turn.
  detail::Rounds rounds_;
  /// Samples of the first turn that may be repeated.
  int64_t num_kept_ = 0;
};

} // namespace accelerate
