// SPDX-License-Identifier: Apache-2.0
// Batches of samples that are packed one behind the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/samplers.h"

namespace accelerate {

/// What every packed batch has room for; the fields are those of
/// `models::PackOptions`.
struct ACCELERATE_API PackedBatchOptions {
  /// Tokens of a batch.
  int64_t num_tokens = 0;
  /// Sequences of a batch, those that fill up the row included.
  int64_t num_sequences = 0;
  /// Tokens of a sequence.
  int64_t max_length = 0;
};

/// Takes samples in the order of `sampler` into a batch for as long as
/// `models::pack` has room for them: as many tokens in each step, whatever the
/// lengths. An order at random leaves about half of a sequence empty.
///
///     const std::vector<int64_t> lengths = {3, 7, 5, 2};
///     auto sampler = std::make_shared<accelerate::PackedBatchSampler>(
///         std::make_shared<accelerate::RandomSampler>(4),
///         lengths,
///         accelerate::PackedBatchOptions{
///             .num_tokens = 12, .num_sequences = 4, .max_length = 8});
class ACCELERATE_API PackedBatchSampler final : public BatchSampler {
 public:
  /// `lengths[i]`: tokens of sample i. Throws `UsageError` where one is below 1
  /// or above `max_length`, where `max_length` is above `num_tokens`, and where
  /// `num_sequences` is too few to fill up the row of a single sample:
  /// num_tokens / max_length, rounded up, and one.
  PackedBatchSampler(
      std::shared_ptr<const Sampler> sampler,
      std::vector<int64_t> lengths,
      PackedBatchOptions options);
  std::vector<std::vector<int64_t>> batches(uint64_t seed, int64_t epoch)
      const override;

 private:
  /// Whether `num_samples` samples of so many tokens and what fills up the row
  /// are no more sequences than there may be.
  bool has_room(int64_t num_samples, int64_t num_tokens) const;

  std::shared_ptr<const Sampler> sampler_;
  std::vector<int64_t> lengths_;
  PackedBatchOptions options_;
};

} // namespace accelerate
