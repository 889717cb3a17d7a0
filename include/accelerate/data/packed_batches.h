// SPDX-License-Identifier: Apache-2.0
// Batch samplers for packed sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/data/samplers.h"
#include "accelerate/export.h"

namespace accelerate {

/// The capacity of every packed batch. The fields are those of
/// `models::PackOptions`.
struct ACCELERATE_API PackedBatchOptions {
  /// Tokens per batch.
  int64_t num_tokens = 0;
  /// Sequences per batch, including those that pad the row.
  int64_t num_sequences = 0;
  /// Tokens per sequence.
  int64_t max_length = 0;
};

/// Adds samples to a batch in the order of `sampler` as long as `models::pack`
/// has room for them. Every step then has the same number of tokens, whatever
/// the lengths of the samples. With a random order, padding takes about half a
/// sequence per batch.
///
///     const std::vector<int64_t> lengths = {3, 7, 5, 2};
///     auto sampler = std::make_shared<accelerate::PackedBatchSampler>(
///         std::make_shared<accelerate::RandomSampler>(4),
///         lengths,
///         accelerate::PackedBatchOptions{
///             .num_tokens = 12, .num_sequences = 4, .max_length = 8});
class ACCELERATE_API PackedBatchSampler final : public BatchSampler {
 public:
  /// `lengths[i]` is the number of tokens of sample i. Throws `UsageError` if a
  /// length is below 1 or above `max_length`, if `max_length` exceeds
  /// `num_tokens`, or if `num_sequences` is too small to pad the row after a
  /// single sample, which needs up to ceil(num_tokens / max_length) + 1
  /// sequences.
  PackedBatchSampler(
      std::shared_ptr<const Sampler> sampler,
      std::vector<int64_t> lengths,
      PackedBatchOptions options);
  std::vector<std::vector<int64_t>> batches(uint64_t seed, int64_t epoch)
      const override;

 private:
  /// Whether a row with `num_samples` samples and `num_tokens` tokens in total
  /// has at most `num_sequences` sequences, including those that pad the row.
  bool fits_row(int64_t num_samples, int64_t num_tokens) const;

  std::shared_ptr<const Sampler> sampler_;
  std::vector<int64_t> lengths_;
  PackedBatchOptions options_;
};

} // namespace accelerate
