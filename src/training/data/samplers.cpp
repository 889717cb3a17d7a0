// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/samplers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

// A separate generator, so that torch's default one neither determines the
// order nor advances. The sum is the same as in Hugging Face Accelerate.
at::Generator generator_of(uint64_t seed, int64_t epoch) {
  return at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch));
}

std::vector<int64_t> to_vector(const at::Tensor& indices) {
  const auto* first = indices.const_data_ptr<int64_t>();
  return {first, first + indices.numel()};
}

std::vector<int64_t> shuffled(int64_t size, uint64_t seed, int64_t epoch) {
  return to_vector(at::randperm(size, generator_of(seed, epoch), at::kLong));
}

int64_t checked_size(const char* where, int64_t size) {
  if (size < 0) {
    throw UsageError(
        str_cat("[", where, "] size is ", size, ", expected 0 or more"));
  }
  return size;
}

} // namespace

Sampler::~Sampler() = default;
BatchSampler::~BatchSampler() = default;

SequentialSampler::SequentialSampler(int64_t size)
    : size_(checked_size("SequentialSampler", size)) {}

std::vector<int64_t> SequentialSampler::order(uint64_t, int64_t) const {
  std::vector<int64_t> order(static_cast<size_t>(size_));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

RandomSampler::RandomSampler(int64_t size)
    : size_(checked_size("RandomSampler", size)) {}

std::vector<int64_t> RandomSampler::order(uint64_t seed, int64_t epoch) const {
  return shuffled(size_, seed, epoch);
}

WeightedRandomSampler::WeightedRandomSampler(
    std::vector<double> weights,
    int64_t num_samples,
    bool replacement)
    : weights_(std::move(weights)),
      num_samples_(num_samples),
      replacement_(replacement) {
  if (num_samples < 1) {
    throw UsageError(str_cat(
        "[WeightedRandomSampler] num_samples is ",
        num_samples,
        ", expected at least 1"));
  }
  int64_t num_positive = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!std::isfinite(weights_[i]) || weights_[i] < 0) {
      throw UsageError(str_cat(
          "[WeightedRandomSampler] weight ",
          i,
          " is ",
          weights_[i],
          ", expected a finite number of at least 0"));
    }
    num_positive += weights_[i] > 0 ? 1 : 0;
  }
  if (num_positive < (replacement ? 1 : num_samples)) {
    throw UsageError(str_cat(
        "[WeightedRandomSampler] Got ",
        num_positive,
        " positive weights, expected at least ",
        replacement ? 1 : num_samples,
        replacement ? ""
                    : " without replacement. Draw fewer samples, or draw with "
                      "replacement"));
  }
}

std::vector<int64_t> WeightedRandomSampler::order(uint64_t seed, int64_t epoch)
    const {
  // Use doubles like torch's sampler, because other types would draw other
  // numbers.
  const auto weights = at::from_blob(
      const_cast<double*>(weights_.data()),
      {static_cast<int64_t>(weights_.size())},
      at::kDouble);
  return to_vector(at::multinomial(
      weights, num_samples_, replacement_, generator_of(seed, epoch)));
}

LengthGroupedSampler::LengthGroupedSampler(
    std::vector<int64_t> lengths,
    int64_t batch_size,
    std::optional<int64_t> mega_batch_factor)
    : lengths_(std::move(lengths)), mega_batch_size_(batch_size) {
  if (batch_size < 1 || mega_batch_factor.value_or(1) < 1) {
    throw UsageError(str_cat(
        "[LengthGroupedSampler] batch_size is ",
        batch_size,
        " and mega_batch_factor is ",
        mega_batch_factor.value_or(1),
        ". Both must be at least 1"));
  }
  mega_batch_size_ *= mega_batch_factor.value_or(
      std::clamp<int64_t>(size() / (batch_size * 4), 1, 50));
}

std::vector<int64_t> LengthGroupedSampler::order(uint64_t seed, int64_t epoch)
    const {
  auto order = shuffled(size(), seed, epoch);
  const auto length = [this](int64_t i) {
    return lengths_[static_cast<size_t>(i)];
  };
  int64_t longest = 0;
  for (int64_t first = 0; first < size(); first += mega_batch_size_) {
    const int64_t last = std::min(first + mega_batch_size_, size());
    // Stable like Python's `sorted`, so equal lengths keep their shuffled
    // order.
    std::stable_sort(
        order.begin() + first, order.begin() + last, [&](auto a, auto b) {
          return length(a) > length(b);
        });
    // The longest element of all is the first of some mega-batch. If there are
    // several, the first one is used.
    if (length(order[static_cast<size_t>(first)]) >
        length(order[static_cast<size_t>(longest)])) {
      longest = first;
    }
  }
  if (longest > 0) {
    std::swap(order[0], order[static_cast<size_t>(longest)]);
  }
  return order;
}

TokenBudgetBatchSampler::TokenBudgetBatchSampler(
    std::shared_ptr<const Sampler> sampler,
    std::vector<int64_t> lengths,
    int64_t max_tokens)
    : sampler_(std::move(sampler)),
      lengths_(std::move(lengths)),
      max_tokens_(max_tokens) {
  for (size_t i = 0; i < lengths_.size(); ++i) {
    if (lengths_[i] < 0 || lengths_[i] > max_tokens_) {
      throw UsageError(str_cat(
          "[TokenBudgetBatchSampler] Sample ",
          i,
          " has length ",
          lengths_[i],
          ", expected 0 to max_tokens (",
          max_tokens_,
          "). Truncate the sample or raise max_tokens"));
    }
  }
}

std::vector<std::vector<int64_t>> TokenBudgetBatchSampler::batches(
    uint64_t seed,
    int64_t epoch) const {
  std::vector<std::vector<int64_t>> batches;
  int64_t longest = 0;
  for (const int64_t index : sampler_->order(seed, epoch)) {
    if (index < 0 || index >= static_cast<int64_t>(lengths_.size())) {
      throw UsageError(str_cat(
          "[TokenBudgetBatchSampler] The sampler returned index ",
          index,
          ", but only ",
          lengths_.size(),
          " lengths were passed. Pass one length for each sample"));
    }
    const int64_t length = lengths_[static_cast<size_t>(index)];
    longest = std::max(longest, length);
    if (batches.empty() ||
        (static_cast<int64_t>(batches.back().size()) + 1) * longest >
            max_tokens_) {
      batches.emplace_back();
      longest = length;
    }
    batches.back().push_back(index);
  }
  return batches;
}

} // namespace accelerate
