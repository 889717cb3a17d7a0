// SPDX-License-Identifier: Apache-2.0
// Which samples make up which batch of which rank: index logic, no data.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <numeric>

#include "accelerate/data_loader.h"
#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

} // namespace

std::vector<int64_t> epoch_order(
    int64_t size,
    const DataLoaderOptions& options,
    uint64_t seed,
    int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  if (!options.shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  auto generator =
      at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch));
  const auto permutation = at::randperm(size, generator, at::kLong);
  std::copy_n(permutation.data_ptr<int64_t>(), size, order.begin());
  return order;
}

int64_t num_batches(
    int64_t size,
    const DataLoaderOptions& options,
    ShardOptions shard) {
  const int64_t round = options.batch_size * shard.world_size;
  if (options.drop_last) {
    return size / round;
  }
  if (options.even_batches) {
    return divide_up(size, round);
  }
  const int64_t all = divide_up(size, options.batch_size);
  return divide_up(all - shard.rank, shard.world_size);
}

std::vector<int64_t> batch_indices(
    const std::vector<int64_t>& order,
    const DataLoaderOptions& options,
    ShardOptions shard,
    int64_t index) {
  const auto size = static_cast<int64_t>(order.size());
  const int64_t first =
      (index * shard.world_size + shard.rank) * options.batch_size;
  const int64_t round = options.batch_size * shard.world_size;
  const bool fills_up = options.even_batches && shard.world_size > 1;
  const int64_t last = fills_up ? first + options.batch_size
                                : std::min(first + options.batch_size, size);
  std::vector<int64_t> indices;
  for (int64_t at = first; at < last; ++at) {
    // Past the end, the first round of the epoch is dealt out again.
    const int64_t source = at < size ? at : (at - size) % std::min(round, size);
    indices.push_back(order[static_cast<size_t>(source)]);
  }
  return indices;
}

namespace detail {

void check(const DataLoaderOptions& options) {
  if (options.batch_size < 1) {
    throw UsageError(str_cat(
        "[DataLoader] got batch_size ",
        options.batch_size,
        ", expected at least 1"));
  }
}

uint64_t draw_seed() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

} // namespace detail
} // namespace accelerate
