// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/packed_batches.h"

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

PackedBatchSampler::PackedBatchSampler(
    std::shared_ptr<const Sampler> sampler,
    std::vector<int64_t> lengths,
    PackedBatchOptions options)
    : sampler_(std::move(sampler)),
      lengths_(std::move(lengths)),
      options_(options) {
  const auto& o = options_;
  if (o.max_length < 1 || o.max_length > o.num_tokens || !fits_row(1, 0)) {
    throw UsageError(str_cat(
        "[PackedBatchSampler] Got num_tokens ",
        o.num_tokens,
        ", num_sequences ",
        o.num_sequences,
        " and max_length ",
        o.max_length,
        ". max_length must be from 1 to num_tokens, and num_sequences at least "
        "num_tokens / max_length + 1"));
  }
  for (size_t i = 0; i < lengths_.size(); ++i) {
    if (lengths_[i] < 1 || lengths_[i] > o.max_length) {
      throw UsageError(str_cat(
          "[PackedBatchSampler] Sample ",
          i,
          " has length ",
          lengths_[i],
          ", expected 1 to max_length (",
          o.max_length,
          "). Truncate the sample or raise max_length"));
    }
  }
}

bool PackedBatchSampler::fits_row(int64_t num_samples, int64_t num_tokens)
    const {
  const int64_t num_missing = options_.num_tokens - num_tokens;
  const int64_t num_fillers =
      (num_missing + options_.max_length - 1) / options_.max_length;
  return num_missing >= 0 &&
         num_samples + num_fillers <= options_.num_sequences;
}

std::vector<std::vector<int64_t>> PackedBatchSampler::batches(
    uint64_t seed,
    int64_t epoch) const {
  std::vector<std::vector<int64_t>> batches;
  int64_t num_tokens = 0;
  for (const int64_t index : sampler_->order(seed, epoch)) {
    if (index < 0 || index >= static_cast<int64_t>(lengths_.size())) {
      throw UsageError(str_cat(
          "[PackedBatchSampler] The sampler returned index ",
          index,
          ", but only ",
          lengths_.size(),
          " lengths were passed. Pass one length for each sample"));
    }
    const int64_t length = lengths_[static_cast<size_t>(index)];
    if (batches.empty() || !fits_row(
                               static_cast<int64_t>(batches.back().size()) + 1,
                               num_tokens + length)) {
      batches.emplace_back();
      num_tokens = 0;
    }
    batches.back().push_back(index);
    num_tokens += length;
  }
  return batches;
}

} // namespace accelerate
