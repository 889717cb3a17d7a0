// SPDX-License-Identifier: Apache-2.0
// How a loader makes its batches and shares them between ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/export.h"
#include "accelerate/samplers.h"

namespace accelerate {

/// How ranks share an iterable source.
enum class IterableSharding {
  /// Every rank reads all elements and keeps its own: all ranks see the same
  /// end, nobody has to talk, and the state fits any number of ranks.
  kElement,
  /// The source's own `shard(int64_t index, int64_t count)`, called before
  /// `reset` in every epoch, gives each worker of each rank its part; several
  /// workers read copies of the source. Each element is read once. As the parts
  /// may have different lengths, ranks tell each other 8 bytes per batch
  /// whether they go on. With `even_batches`, all go on until the last part
  /// ends, and a rank that has run out repeats its first batch, of which no
  /// sample counts as real; with `drop_last`, all stop when one has no full
  /// batch left. With neither, nobody talks and a rank stops alone: for loops
  /// without collectives.
  kSource,
};

struct ACCELERATE_API DataLoaderOptions {
  /// Samples per batch and rank; of all ranks together with `split_batches`.
  int64_t batch_size = 1;
  /// A new order every epoch. It depends on `seed` and the epoch alone.
  bool shuffle = false;
  /// Leave out what does not fill a batch (and a round of all ranks).
  bool drop_last = false;
  /// Where the ranks cannot have equally many full batches, begin the data set
  /// again to fill up. Otherwise some ranks get fewer or shorter batches.
  bool even_batches = true;
  /// Drawn from torch's default generator where not given; rank 0's counts.
  std::optional<uint64_t> seed = {};
  /// Cut batches of `batch_size` into one part per rank.
  bool split_batches = false;
  /// Another order than in sequence or shuffled.
  std::shared_ptr<const Sampler> sampler = {};
  /// Batches of varying size; `batch_size` is not used.
  std::shared_ptr<const BatchSampler> batch_sampler = {};
  /// Threads that make batches ahead of the loop. With 0 the loop makes them.
  /// An iterable source is read by one thread at most, with
  /// `IterableSharding::kSource` by each on a part of its own.
  int num_workers = 0;
  /// Batches per worker that are under way or wait. They are what bounds the
  /// memory that a loader takes.
  int64_t prefetch_factor = 2;
  /// Put batches into pinned memory where they go to a GPU, so that the copy
  /// runs beside the computation.
  bool pin_memory = true;
  /// Rank 0 reads for all ranks and sends each its own batch: for sources that
  /// only one process can read. The batches are those of the other modes.
  bool dispatch_batches = false;
  IterableSharding iterable_sharding = IterableSharding::kElement;
};

/// What an Accelerator asks of all its loaders; nothing leaves them as they
/// are.
struct ACCELERATE_API DataLoaderConfiguration {
  std::optional<bool> split_batches = {};
  std::optional<bool> dispatch_batches = {};
  std::optional<bool> even_batches = {};
};

} // namespace accelerate
