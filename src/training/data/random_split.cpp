// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>

#include "accelerate/data/samplers.h"
#include "accelerate/datasets.h"
#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::detail {

std::vector<std::vector<int64_t>> split_randomly(
    int64_t size,
    const std::vector<double>& fractions,
    uint64_t seed) {
  const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
  for (const double fraction : fractions) {
    if (!(fraction >= 0)) {
      throw UsageError(str_cat(
          "[random_split] A fraction is ", fraction, ", expected 0 to 1"));
    }
  }
  // Fractions such as 0.1 do not add up to exactly 1.
  if (!(std::abs(sum - 1) < 1e-6)) {
    throw UsageError(str_cat(
        "[random_split] The fractions add up to ", sum, ", expected 1"));
  }
  std::vector<int64_t> sizes;
  int64_t num_left = size;
  for (const double fraction : fractions) {
    sizes.push_back(
        static_cast<int64_t>(std::floor(static_cast<double>(size) * fraction)));
    num_left -= sizes.back();
  }
  for (int64_t i = 0; i < num_left; ++i) {
    ++sizes[static_cast<size_t>(i) % sizes.size()];
  }
  const auto order = RandomSampler(size).order(seed, /*epoch=*/0);
  std::vector<std::vector<int64_t>> subsets;
  auto next = order.begin();
  for (const int64_t length : sizes) {
    subsets.emplace_back(next, next + length);
    next += length;
  }
  return subsets;
}

} // namespace accelerate::detail
