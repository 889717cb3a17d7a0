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
  /// Every rank reads all elements and keeps its share. All ranks end at the
  /// same batch without communication, and saved state can be loaded with any
  /// number of ranks.
  kElement,
  /// Calls the source's own `shard(int64_t index, int64_t count)` before
  /// `reset` in every epoch, to assign a part to each worker of each rank.
  /// Several workers read copies of the source. Each element is read once.
  /// Because parts may differ in length, ranks exchange 8 bytes per batch to
  /// learn whether the other ranks have more batches. With `even_batches`, all
  /// ranks continue until the longest part ends. A rank that has no more
  /// elements repeats its first batch, and none of the repeated samples count
  /// as real. With `drop_last`, all ranks stop when one rank has no full batch
  /// left. With neither option, ranks do not communicate and stop
  /// independently, so the loop must not contain collectives.
  kSource,
};

struct ACCELERATE_API DataLoaderOptions {
  /// The number of samples per batch of one rank or, with `split_batches`, of
  /// all ranks together.
  int64_t batch_size = 1;
  /// Shuffle in every epoch. The order depends only on `seed` and the epoch.
  bool shuffle = false;
  /// Drop samples at the end that do not fill a batch on every rank.
  bool drop_last = false;
  /// If the number of full batches is not a multiple of the number of ranks,
  /// repeat samples from the beginning to complete the last round. Without this
  /// option, some ranks get fewer or shorter batches.
  bool even_batches = true;
  /// The seed of the order of samples. Default: drawn from torch's default
  /// generator on rank 0.
  std::optional<uint64_t> seed = {};
  /// Split batches of `batch_size` into one part per rank.
  bool split_batches = false;
  /// A custom order of samples. By default, the order is sequential or
  /// shuffled.
  std::shared_ptr<const Sampler> sampler = {};
  /// Batches of varying size. If set, `batch_size` is not used.
  std::shared_ptr<const BatchSampler> batch_sampler = {};
  /// The number of threads that prepare batches ahead of the loop. With 0, the
  /// loop's thread prepares them. An iterable source uses at most one thread,
  /// except with `IterableSharding::kSource`, where each thread reads its own
  /// part.
  int num_workers = 0;
  /// The maximum number of batches per worker that are in progress or waiting.
  /// This limits the memory of a loader.
  int64_t prefetch_factor = 2;
  /// Use pinned memory for batches that are moved to a GPU, so that copies
  /// overlap with computation.
  bool pin_memory = true;
  /// Rank 0 reads for all ranks and sends each rank its batch. Use this for
  /// sources that only one process can read. The batches are the same as in
  /// other modes.
  bool dispatch_batches = false;
  IterableSharding iterable_sharding = IterableSharding::kElement;
};

/// Options that override those of all loaders of an Accelerator. Fields that
/// are not set have no effect.
struct ACCELERATE_API DataLoaderConfiguration {
  std::optional<bool> split_batches = {};
  std::optional<bool> dispatch_batches = {};
  std::optional<bool> even_batches = {};
};

} // namespace accelerate
