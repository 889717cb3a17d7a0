// SPDX-License-Identifier: Apache-2.0
// Distributes sample indices over batches and ranks. Nothing here reads data.
//
// A `Sampler` returns the order of the samples of an epoch, and a
// `BatchSampler` returns the batches of an epoch. A `BatchShard` distributes
// either of them over ranks. Orders depend only on the seed and the epoch, not
// on the number of processes or on restarts. All classes here are immutable and
// may be shared between threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The order of the samples of an epoch.
class ACCELERATE_API Sampler {
 public:
  virtual ~Sampler();
  /// The number of indices that `order` returns.
  virtual int64_t size() const = 0;
  virtual std::vector<int64_t> order(uint64_t seed, int64_t epoch) const = 0;
};

/// Returns 0, 1, 2, ... in every epoch.
class ACCELERATE_API SequentialSampler final : public Sampler {
 public:
  /// Throws `UsageError` if `size` is negative.
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  int64_t size_;
};

/// Returns every index once, in a new order in every epoch. The order is that
/// of `torch.randperm(size)` with a CPU generator seeded with `seed + epoch`,
/// as in Hugging Face's `SeedableRandomSampler`.
class ACCELERATE_API RandomSampler final : public Sampler {
 public:
  /// Throws `UsageError` if `size` is negative.
  explicit RandomSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  int64_t size_;
};

/// Draws index i with probability `weights[i] / sum`. The result is the same as
/// with torch's sampler of this name and a CPU generator seeded with `seed +
/// epoch`.
class ACCELERATE_API WeightedRandomSampler final : public Sampler {
 public:
  /// Throws `UsageError` if `num_samples` is below 1, if a weight is negative
  /// or not finite, if all weights are zero, or, without replacement, if fewer
  /// than `num_samples` weights are positive.
  WeightedRandomSampler(
      std::vector<double> weights,
      int64_t num_samples,
      bool replacement = true);
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  std::vector<double> weights_;
  int64_t num_samples_;
  bool replacement_;
};

/// Returns every index once, with samples of similar length next to each other,
/// so that batches need little padding. Shuffled indices are split into
/// mega-batches of `mega_batch_factor * batch_size` samples. Each mega-batch is
/// sorted by length, longest first. The longest sample of all comes first, so
/// that if memory does not suffice, this shows in the first batch. The result
/// equals `get_length_grouped_indices` of transformers with a generator seeded
/// with `seed + epoch`.
class ACCELERATE_API LengthGroupedSampler final : public Sampler {
 public:
  /// `batch_size` is the number of samples that all ranks together use per
  /// step. `mega_batch_factor` defaults to 50, or less if that would give fewer
  /// than four mega-batches. Throws `UsageError` if either is below 1.
  LengthGroupedSampler(
      std::vector<int64_t> lengths,
      int64_t batch_size,
      std::optional<int64_t> mega_batch_factor = {});
  int64_t size() const override {
    return static_cast<int64_t>(lengths_.size());
  }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  std::vector<int64_t> lengths_;
  int64_t mega_batch_size_;
};

/// The batches of an epoch, of varying size. No batch may be empty.
class ACCELERATE_API BatchSampler {
 public:
  virtual ~BatchSampler();
  virtual std::vector<std::vector<int64_t>> batches(
      uint64_t seed,
      int64_t epoch) const = 0;
};

/// Adds samples to a batch in the order of `sampler` as long as the size of the
/// padded batch (number of samples times longest length) does not exceed
/// `max_tokens`. Combine it with a `LengthGroupedSampler` to keep padding low.
class ACCELERATE_API TokenBudgetBatchSampler final : public BatchSampler {
 public:
  /// `lengths[i]` is the number of tokens of sample i. Throws `UsageError` if a
  /// length is negative or above `max_tokens`.
  TokenBudgetBatchSampler(
      std::shared_ptr<const Sampler> sampler,
      std::vector<int64_t> lengths,
      int64_t max_tokens);
  std::vector<std::vector<int64_t>> batches(uint64_t seed, int64_t epoch)
      const override;

 private:
  std::shared_ptr<const Sampler> sampler_;
  std::vector<int64_t> lengths_;
  int64_t max_tokens_;
};

/// How an order is split into batches.
struct ACCELERATE_API BatchOptions {
  /// The number of samples per batch of one rank or, with `split_batches`, of
  /// all ranks together.
  int64_t batch_size = 1;
  /// Drop samples at the end that do not fill a round of all ranks.
  bool drop_last = false;
  /// If the number of full batches is not a multiple of the number of ranks,
  /// repeat indices from the start of the order to complete the last round.
  /// Without this option, some ranks get fewer or shorter batches. This also
  /// completes the last batch of a single rank, so loaders pass false if
  /// `world_size` is 1, as Hugging Face's loader does.
  bool even_batches = true;
  /// Split each batch into equal parts, one per rank, instead of distributing
  /// whole batches to the ranks in turn.
  bool split_batches = false;

  bool operator==(const BatchOptions&) const = default;
};

/// A rank and the number of ranks.
struct ACCELERATE_API ShardOptions {
  int rank = 0;
  int world_size = 1;

  bool operator==(const ShardOptions&) const = default;
};

namespace detail {

/// Distributes units (samples, or batches of varying size) in rounds. In each
/// round, every rank gets `per_rank` units. This covers both ways of sharding:
/// if batches of B samples are split, `per_rank` is B / `world_size`.
struct ACCELERATE_API Rounds {
  int64_t per_rank = 1;
  bool drop_last = false;
  bool even = true;
  ShardOptions shard = {};
  /// Units at the start of the epoch that were already used.
  int64_t num_done = 0;

  int64_t round_size() const { return per_rank * shard.world_size; }
  /// The number of batches of this rank in an epoch of `num_units`.
  int64_t num_batches(int64_t num_units) const;
  int64_t first(int64_t index) const;
  /// The end of the units of batch `index`: the position of its last unit plus
  /// 1. The result exceeds `num_units` if the batch contains repeats.
  int64_t last(int64_t index, int64_t num_units) const;
  /// The unit at `position`. Positions past the end wrap around to unit 0.
  int64_t unit(int64_t position, int64_t num_units) const;
};

} // namespace detail

/// The batches of one rank in one epoch. This is Hugging Face's
/// `BatchSamplerShard` in closed form, with O(1) access to any batch.
///
///     accelerate::BatchShard shard(
///         accelerate::RandomSampler(100).order(seed, epoch),
///         {.batch_size = 8},
///         {.rank = 1, .world_size = 4});
///     for (int64_t i = 0; i < shard.size(); ++i) {
///       use(shard.batch(i).indices);
///     }
///
/// The last round is completed with samples from the first round of the epoch,
/// which are repeated more than once if the epoch is shorter than a round.
class ACCELERATE_API BatchShard {
 public:
  struct Batch {
    std::vector<int64_t> indices;
    /// How many indices are real. Real indices come first, followed by repeats.
    int64_t num_real = 0;
  };

  /// `num_done` is the number of samples at the start of the order that were
  /// already used, by any number of ranks. Repeats still come from the start of
  /// the whole order. Throws `UsageError` if the batch size is below 1 or, with
  /// `split_batches`, not a multiple of the number of ranks, if the rank is not
  /// below `world_size`, or if `num_done` exceeds the length of the order.
  BatchShard(
      std::vector<int64_t> order,
      BatchOptions options,
      ShardOptions shard,
      int64_t num_done = 0);

  /// Distributes whole batches of varying size. `batch_size` is not used.
  /// `even_batches` repeats whole batches, whose `num_real` is 0.
  /// `num_done_batches` counts the batches of all ranks. Also throws
  /// `UsageError` if a batch is empty or `split_batches` is set.
  BatchShard(
      std::vector<std::vector<int64_t>> batches,
      BatchOptions options,
      ShardOptions shard,
      int64_t num_done_batches = 0);

  /// The batches of another rank in the same epoch. Both objects share the
  /// order.
  BatchShard for_rank(int rank) const;

  /// The number of batches of this rank.
  int64_t size() const;
  /// Throws `UsageError` if `index` is not below `size()`.
  Batch batch(int64_t index) const;
  /// The number of real samples (without repeats) in the batches that all ranks
  /// have at this index.
  int64_t num_real_of_round(int64_t index) const;

 private:
  int64_t num_units() const;

  std::shared_ptr<const std::vector<int64_t>> order_;
  std::shared_ptr<const std::vector<std::vector<int64_t>>> batches_;
  bool varying_;
  detail::Rounds rounds_;
};

/// Selects the elements that one rank takes from a stream of unknown length, as
/// Hugging Face's `IterableDatasetShard` does. Every rank reads the whole
/// stream. A rank's batch is returned once the round of all ranks is complete,
/// so that an incomplete last round can still be dropped or completed.
///
///     accelerate::IterableShard shard(options, ranks);
///     int64_t position = 0;
///     while (auto element = source.next()) {
///       if (shard.is_repeated(position)) { ... }  // keep it for the end
///       if (shard.is_mine(position)) { ... }      // add it to the batch
///       if (shard.ends_round(position)) { ... }   // return the batch
///       ++position;
///     }
///     for (int64_t p : shard.last_batch(position).indices) {
///       // p is an element of the incomplete round, or one that was kept.
///     }
class ACCELERATE_API IterableShard {
 public:
  /// `num_done` is the number of elements at the start that were already used.
  /// Throws the same errors as `BatchShard`.
  IterableShard(BatchOptions options, ShardOptions shard, int64_t num_done = 0);

  bool is_mine(int64_t position) const;
  bool ends_round(int64_t position) const;
  /// Whether the element may be repeated to complete the last round.
  bool is_repeated(int64_t position) const;
  /// The positions of this rank's batch in the incomplete last round of a
  /// stream that ended after `num_elements`. Empty if the last round is
  /// complete or dropped, or if it is left uneven and has no elements for this
  /// rank.
  BatchShard::Batch last_batch(int64_t num_elements) const;
  /// The number of batches of this rank for a stream of `num_elements`.
  int64_t size(int64_t num_elements) const;
  /// The number of elements that all ranks together use per step.
  int64_t round_size() const { return rounds_.round_size(); }

 private:
  detail::Rounds rounds_;
};

} // namespace accelerate
