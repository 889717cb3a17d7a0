// SPDX-License-Identifier: Apache-2.0
// Which samples are in which batch of which rank. Computes only indices and
// reads no data.
//
// Hugging Face Accelerate distributes batches in a loop that keeps the samples
// that it may have to repeat. All its cases are equivalent to rounds of units,
// of which every rank gets `per_rank` consecutive ones. So the indices of any
// batch can be computed directly. Resuming and reading for other ranks require
// this.
#include <algorithm>

#include "accelerate/data/samplers.h"
#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void check(const char* where, ShardOptions shard) {
  if (shard.rank < 0 || shard.rank >= shard.world_size) {
    throw UsageError(str_cat(
        "[",
        where,
        "] rank is ",
        shard.rank,
        ", expected 0 to ",
        shard.world_size - 1));
  }
}

detail::Rounds rounds_of(
    const char* where,
    const BatchOptions& options,
    ShardOptions shard,
    int64_t num_done) {
  check(where, shard);
  if (options.batch_size < 1) {
    throw UsageError(str_cat(
        "[",
        where,
        "] batch_size is ",
        options.batch_size,
        ", expected at least 1"));
  }
  if (options.split_batches && options.batch_size % shard.world_size != 0) {
    throw UsageError(str_cat(
        "[",
        where,
        "] With split_batches, batch_size ",
        options.batch_size,
        " must be a multiple of ",
        shard.world_size,
        ", the number of ranks. Change the batch size, or set split_batches to "
        "false"));
  }
  return {
      .per_rank = options.split_batches ? options.batch_size / shard.world_size
                                        : options.batch_size,
      .drop_last = options.drop_last,
      .even = options.even_batches,
      .shard = shard,
      .num_done = num_done};
}

void check_done(const char* where, int64_t num_done, int64_t num_units) {
  if (num_done < 0 || num_done > num_units) {
    throw UsageError(str_cat(
        "[",
        where,
        "] The saved state is at position ",
        num_done,
        ", but an epoch ends at position ",
        num_units,
        ". Load state that was saved with the same dataset"));
  }
}

} // namespace

namespace detail {

int64_t Rounds::num_batches(int64_t num_units) const {
  const int64_t left = num_units - num_done;
  if (drop_last) {
    return left / round_size();
  }
  // In an uneven last round, this rank gets only the units that the ranks
  // before it leave.
  const int64_t of_ranks_before = even ? 0 : shard.rank * per_rank;
  return std::max<int64_t>(0, divide_up(left - of_ranks_before, round_size()));
}

int64_t Rounds::first(int64_t index) const {
  return num_done + index * round_size() + shard.rank * per_rank;
}

int64_t Rounds::last(int64_t index, int64_t num_units) const {
  const int64_t end = first(index) + per_rank;
  return even ? end : std::min(end, num_units);
}

int64_t Rounds::unit(int64_t position, int64_t num_units) const {
  // The original repeats only batches of its first round, and starts again from
  // the beginning if the epoch is shorter.
  return position < num_units
             ? position
             : (position - num_units) % std::min(round_size(), num_units);
}

} // namespace detail

BatchShard::BatchShard(
    std::vector<int64_t> order,
    BatchOptions options,
    ShardOptions shard,
    int64_t num_done)
    : order_(std::make_shared<const std::vector<int64_t>>(std::move(order))),
      varying_(false),
      rounds_(rounds_of("BatchShard", options, shard, num_done)) {
  check_done("BatchShard", num_done, num_units());
}

BatchShard::BatchShard(
    std::vector<std::vector<int64_t>> batches,
    BatchOptions options,
    ShardOptions shard,
    int64_t num_done_batches)
    : batches_(std::make_shared<const std::vector<std::vector<int64_t>>>(
          std::move(batches))),
      varying_(true),
      rounds_{
          .per_rank = 1,
          .drop_last = options.drop_last,
          .even = options.even_batches,
          .shard = shard,
          .num_done = num_done_batches} {
  check("BatchShard", shard);
  check_done("BatchShard", num_done_batches, num_units());
  if (options.split_batches) {
    throw UsageError(
        "[BatchShard] split_batches does not support batches of varying size. "
        "Set split_batches to false");
  }
  for (size_t i = 0; i < batches_->size(); ++i) {
    if ((*batches_)[i].empty()) {
      throw UsageError(str_cat(
          "[BatchShard] Batch ",
          i,
          " is empty. Put at least one sample into it"));
    }
  }
}

// The order is shared, not copied, because rank 0 dispatches for all ranks.
BatchShard BatchShard::for_rank(int rank) const {
  BatchShard other = *this;
  other.rounds_.shard.rank = rank;
  check("BatchShard", other.rounds_.shard);
  return other;
}

int64_t BatchShard::num_units() const {
  return static_cast<int64_t>(varying_ ? batches_->size() : order_->size());
}

int64_t BatchShard::size() const {
  return rounds_.num_batches(num_units());
}

BatchShard::Batch BatchShard::batch(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw UsageError(str_cat(
        "[BatchShard] batch index is ", index, ", expected 0 to ", size() - 1));
  }
  const int64_t first = rounds_.first(index);
  if (varying_) {
    const auto& indices =
        (*batches_)[static_cast<size_t>(rounds_.unit(first, num_units()))];
    return {
        indices,
        first < num_units() ? static_cast<int64_t>(indices.size()) : 0};
  }
  const int64_t last = rounds_.last(index, num_units());
  Batch batch;
  batch.indices.reserve(static_cast<size_t>(last - first));
  for (int64_t at = first; at < last; ++at) {
    batch.indices.push_back(
        (*order_)[static_cast<size_t>(rounds_.unit(at, num_units()))]);
  }
  batch.num_real = std::clamp<int64_t>(num_units() - first, 0, last - first);
  return batch;
}

int64_t BatchShard::num_real_of_round(int64_t index) const {
  const int64_t first = rounds_.num_done + index * rounds_.round_size();
  const int64_t last = std::min(first + rounds_.round_size(), num_units());
  if (!varying_) {
    return std::max<int64_t>(0, last - first);
  }
  int64_t num_real = 0;
  for (int64_t at = first; at < last; ++at) {
    num_real +=
        static_cast<int64_t>((*batches_)[static_cast<size_t>(at)].size());
  }
  return num_real;
}

IterableShard::IterableShard(
    BatchOptions options,
    ShardOptions shard,
    int64_t num_done)
    : rounds_(rounds_of("IterableShard", options, shard, num_done)) {
  if (num_done < 0) {
    throw UsageError(str_cat(
        "[IterableShard] num_done is ", num_done, ", expected 0 or more"));
  }
}

bool IterableShard::is_mine(int64_t position) const {
  const int64_t since = position - rounds_.num_done;
  return since >= 0 && since / rounds_.per_rank % rounds_.shard.world_size ==
                           rounds_.shard.rank;
}

bool IterableShard::ends_round(int64_t position) const {
  const int64_t since = position - rounds_.num_done;
  return since >= 0 && since % round_size() == round_size() - 1;
}

bool IterableShard::is_repeated(int64_t position) const {
  return rounds_.even && !rounds_.drop_last && position < round_size();
}

BatchShard::Batch IterableShard::last_batch(int64_t num_elements) const {
  BatchShard::Batch batch;
  const int64_t left = num_elements - rounds_.num_done;
  // Complete rounds were returned as soon as they ended.
  if (left <= 0 || left % round_size() == 0 || rounds_.drop_last) {
    return batch;
  }
  const int64_t index = left / round_size();
  for (int64_t at = rounds_.first(index);
       at < rounds_.last(index, num_elements);
       ++at) {
    batch.indices.push_back(rounds_.unit(at, num_elements));
    batch.num_real += at < num_elements ? 1 : 0;
  }
  return batch;
}

int64_t IterableShard::size(int64_t num_elements) const {
  // A stream may have become shorter than its part that was already used.
  return rounds_.num_batches(std::max(num_elements, rounds_.num_done));
}

} // namespace accelerate
