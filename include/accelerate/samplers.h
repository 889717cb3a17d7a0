// SPDX-License-Identifier: Apache-2.0
// Which samples make up which batch of which rank: indices, no data.
//
// A `Sampler` gives the order of an epoch (or a `BatchSampler` its batches), a
// `BatchShard` deals it out to ranks. Orders depend on (seed, epoch) alone: not
// on the number of processes, not on restarts. All classes here are read only
// once made and may be shared between threads.
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
  /// Number of indices that `order` gives.
  virtual int64_t size() const = 0;
  virtual std::vector<int64_t> order(uint64_t seed, int64_t epoch) const = 0;
};

/// 0, 1, 2, ... in every epoch.
class ACCELERATE_API SequentialSampler final : public Sampler {
 public:
  /// Throws `UsageError` where `size` is negative.
  explicit SequentialSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  int64_t size_;
};

/// Every index once, in an order that is new in every epoch: the same as
/// `torch.randperm(size)` with a CPU generator seeded with `seed + epoch`, and
/// so as Hugging Face's `SeedableRandomSampler`.
class ACCELERATE_API RandomSampler final : public Sampler {
 public:
  /// Throws `UsageError` where `size` is negative.
  explicit RandomSampler(int64_t size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> order(uint64_t seed, int64_t epoch) const override;

 private:
  int64_t size_;
};

/// Draws index i with probability `weights[i] / sum`: as torch's sampler of
/// this name with a CPU generator seeded with `seed + epoch`.
class ACCELERATE_API WeightedRandomSampler final : public Sampler {
 public:
  /// Throws `UsageError` where `num_samples` is below 1, a weight is negative
  /// or not finite, all are zero, or, without replacement, fewer than
  /// `num_samples` are above zero.
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

/// Every index once, neighbours of similar length, so that batches need little
/// padding. Shuffled indices are cut into mega-batches of
/// `mega_batch_factor * batch_size`, each is sorted by length, longest first,
/// and the longest sample of all comes first, so that memory runs out early or
/// never. Equal to `get_length_grouped_indices` of transformers with a
/// generator seeded with `seed + epoch`.
class ACCELERATE_API LengthGroupedSampler final : public Sampler {
 public:
  /// `batch_size`: samples that all ranks together take per step.
  /// `mega_batch_factor`: 50, or what gives four mega-batches where that is
  /// less, unless given. Throws `UsageError` where either is below 1.
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

/// The batches of an epoch, where their size varies. No batch may be empty.
class ACCELERATE_API BatchSampler {
 public:
  virtual ~BatchSampler();
  virtual std::vector<std::vector<int64_t>> batches(
      uint64_t seed,
      int64_t epoch) const = 0;
};

/// Takes samples in the order of `sampler` into a batch for as long as the
/// padded batch, number of samples times longest length, stays within
/// `max_tokens`. Put a `LengthGroupedSampler` underneath to waste little.
class ACCELERATE_API TokenBudgetBatchSampler final : public BatchSampler {
 public:
  /// `lengths[i]`: tokens of sample i. Throws `UsageError` where one is longer
  /// than `max_tokens` or negative.
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

/// How an order is cut into batches.
struct ACCELERATE_API BatchOptions {
  /// Samples per batch and rank; with `split_batches`, of all ranks together.
  int64_t batch_size = 1;
  /// Leave out what does not fill a round of all ranks.
  bool drop_last = false;
  /// Where the ranks cannot have equally many full batches, begin the order
  /// again to fill up. Otherwise some ranks get fewer or shorter batches. A
  /// single rank is filled up too: a loader that has nothing to even out
  /// (`world_size` 1) says false here, as Hugging Face's does.
  bool even_batches = true;
  /// Cut each batch into one equal part per rank, instead of dealing out whole
  /// ones in turn.
  bool split_batches = false;

  bool operator==(const BatchOptions&) const = default;
};

/// Which batches of an epoch belong to one rank.
struct ACCELERATE_API ShardOptions {
  int rank = 0;
  int world_size = 1;

  bool operator==(const ShardOptions&) const = default;
};

namespace detail {

/// Deals units (samples, or batches of varying size) out in rounds, `per_rank`
/// of each round to every rank. Both ways of sharding come to this: to split a
/// batch of B samples is to deal out B / `world_size`.
struct ACCELERATE_API Rounds {
  int64_t per_rank = 1;
  bool drop_last = false;
  bool even = true;
  ShardOptions shard = {};
  /// Units at the front of the epoch that were dealt out already.
  int64_t num_done = 0;

  int64_t round_size() const { return per_rank * shard.world_size; }
  /// Batches of this rank of an epoch of `num_units`.
  int64_t num_batches(int64_t num_units) const;
  int64_t first(int64_t index) const;
  /// One past the last unit of a batch; past `num_units` where it is filled up.
  int64_t last(int64_t index, int64_t num_units) const;
  /// The unit that stands at `position`, repeated past the end.
  int64_t unit(int64_t position, int64_t num_units) const;
};

} // namespace detail

/// One rank's batches of one epoch: Hugging Face's `BatchSamplerShard` in
/// closed form, O(1) to find any batch.
///
///     accelerate::BatchShard shard(
///         accelerate::RandomSampler(100).order(seed, epoch),
///         {.batch_size = 8},
///         {.rank = 1, .world_size = 4});
///     for (int64_t i = 0; i < shard.size(); ++i) {
///       use(shard.batch(i).indices);
///     }
///
/// Filling up repeats the first round of the epoch (all of it, again and again,
/// where it is shorter than a round).
class ACCELERATE_API BatchShard {
 public:
  struct Batch {
    std::vector<int64_t> indices;
    /// The first so many were not repeated to fill up.
    int64_t num_real = 0;
  };

  /// `num_done`: that many samples at the front of the order were used already,
  /// by any number of ranks; what fills up is still the front of the whole
  /// order. Throws `UsageError` where the batch size is below 1, with
  /// `split_batches` no multiple of the ranks, the rank is none of
  /// `world_size`, or `num_done` is not within the order.
  BatchShard(
      std::vector<int64_t> order,
      BatchOptions options,
      ShardOptions shard,
      int64_t num_done = 0);

  /// Batches of varying size, dealt out whole; `batch_size` is not used.
  /// `even_batches` repeats whole batches, `num_real` of those is 0.
  /// `num_done_batches` counts the batches of all ranks. Throws `UsageError`
  /// also for an empty batch and for `split_batches`.
  BatchShard(
      std::vector<std::vector<int64_t>> batches,
      BatchOptions options,
      ShardOptions shard,
      int64_t num_done_batches = 0);

  /// The batches of another rank of the same epoch; both share the order.
  BatchShard for_rank(int rank) const;

  /// Batches of this rank.
  int64_t size() const;
  /// Throws `UsageError` where `index` is not within `size()`.
  Batch batch(int64_t index) const;
  /// Real samples of all ranks together in the batches of number `index`: what
  /// is left of a round once repetitions are taken away.
  int64_t num_real_of_round(int64_t index) const;

 private:
  int64_t num_units() const;

  std::shared_ptr<const std::vector<int64_t>> order_;
  std::shared_ptr<const std::vector<std::vector<int64_t>>> batches_;
  bool varying_;
  detail::Rounds rounds_;
};

/// Which elements of a stream of unknown length a rank takes: Hugging Face's
/// `IterableDatasetShard`. Every rank reads the whole stream; a rank's batch is
/// handed out when the round of all ranks is complete, so that the end can
/// still be dropped or filled up.
///
///     accelerate::IterableShard shard(options, ranks);
///     int64_t position = 0;
///     while (auto element = source.next()) {
///       if (shard.is_repeated(position)) { ... }  // keep it for the end
///       if (shard.is_mine(position)) { ... }      // put it in the batch
///       if (shard.ends_round(position)) { ... }   // hand the batch out
///       ++position;
///     }
///     for (int64_t p : shard.last_batch(position).indices) {
///       // p is an element of the incomplete round, or one that was kept.
///     }
class ACCELERATE_API IterableShard {
 public:
  /// `num_done`: elements at the front that were used already. Throws
  /// `UsageError` as `BatchShard`.
  IterableShard(BatchOptions options, ShardOptions shard, int64_t num_done = 0);

  bool is_mine(int64_t position) const;
  bool ends_round(int64_t position) const;
  /// Whether the element may be wanted again to fill up.
  bool is_repeated(int64_t position) const;
  /// What this rank gets of the incomplete round of a stream that ended after
  /// `num_elements`, as positions; none where the last round is complete, is
  /// dropped, or is left uneven and has nothing for this rank.
  BatchShard::Batch last_batch(int64_t num_elements) const;
  /// Batches of this rank of a stream of `num_elements`.
  int64_t size(int64_t num_elements) const;
  /// Elements that all ranks together take per step.
  int64_t round_size() const { return rounds_.round_size(); }

 private:
  detail::Rounds rounds_;
};

} // namespace accelerate
