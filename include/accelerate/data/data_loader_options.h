// SPDX-License-Identifier: Apache-2.0
// How a loader makes batches and divides them among ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/samplers.h"
#include "accelerate/export.h"

namespace accelerate {

/// How ranks share an iterable source.
enum class IterableSharding {
  /// Every rank reads all elements and keeps its own. All ranks see the same
  /// end without communication, and saved state fits any number of ranks.
  kElement,
  /// Calls the source's own `shard(int64_t index, int64_t count)` before
  /// `reset` in every epoch, to give each worker of each rank its part. Several
  /// workers read copies of the source. Each element is read once. Because
  /// parts may differ in length, ranks exchange 8 bytes per batch about whether
  /// they have more. With `even_batches`, all ranks continue until the last
  /// part ends. A rank that has run out repeats its first batch, none of whose
  /// samples are real. With `drop_last`, all ranks stop when one has no full
  /// batch left. With neither, ranks do not communicate and stop independently:
  /// use this for loops without collectives.
  kSource,
};

struct ACCELERATE_API DataLoaderOptions {
  /// Samples per batch and rank; with `split_batches`, of all ranks together.
  int64_t batch_size = 1;
  /// Shuffle in every epoch. The order depends only on `seed` and the epoch.
  bool shuffle = false;
  /// Drop samples that do not fill a batch (and a round of all ranks).
  bool drop_last = false;
  /// If the number of full batches is not a multiple of the number of ranks,
  /// start again from the beginning to fill up. Otherwise some ranks get fewer
  /// or shorter batches.
  bool even_batches = true;
  /// The default is drawn from torch's default generator on rank 0.
  std::optional<uint64_t> seed = {};
  /// Split batches of `batch_size` into one part per rank.
  bool split_batches = false;
  /// A custom order of samples; the default is sequential or shuffled.
  std::shared_ptr<const Sampler> sampler = {};
  /// Batches of varying size; replaces `batch_size`.
  std::shared_ptr<const BatchSampler> batch_sampler = {};
  /// The number of threads that prepare batches ahead of the loop. With 0, the
  /// loop's thread prepares them. An iterable source uses at most one thread;
  /// with `IterableSharding::kSource`, each thread reads its own part.
  int num_workers = 0;
  /// Batches per worker that are in progress or waiting. This bounds the memory
  /// a loader uses.
  int64_t prefetch_factor = 2;
  /// Use pinned memory for batches that go to a GPU, so that copies overlap
  /// with computation.
  bool pin_memory = true;
  /// Rank 0 reads for all ranks and sends each its batch, for sources that only
  /// one process can read. The batches are the same as in other modes.
  bool dispatch_batches = false;
  IterableSharding iterable_sharding = IterableSharding::kElement;
};

/// Overrides for all loaders of an Accelerator; unset fields change nothing.
struct ACCELERATE_API DataLoaderConfiguration {
  std::optional<bool> split_batches = {};
  std::optional<bool> dispatch_batches = {};
  std::optional<bool> even_batches = {};
};

} // namespace accelerate
