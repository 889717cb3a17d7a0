// SPDX-License-Identifier: Apache-2.0
// Batches of a data set, each rank its own.
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/data_loader_options.h"
#include "accelerate/datasets.h"
#include "accelerate/detail/batch_source.h"
#include "accelerate/detail/loader_place.h"
#include "accelerate/export.h"
#include "accelerate/stateful.h"

namespace accelerate {

/// All of a loader that does not depend on the type of its batches. Copies
/// share the data set and the position.
class ACCELERATE_API AnyDataLoader {
 public:
  /// Batches of an epoch for this rank (of the next epoch, where a
  /// `batch_sampler` varies them). Throws `UsageError` for iterable sources.
  int64_t size() const;
  /// Samples in the data set. Throws `UsageError` for iterable sources.
  int64_t num_samples() const;
  /// Samples that all ranks together take per step. Throws `UsageError` where a
  /// `batch_sampler` varies them.
  int64_t total_batch_size() const;
  /// The epoch that the next loop runs. Counts from 0 by itself.
  void set_epoch(int64_t epoch);

  /// Where the current epoch stands: what was handed out counts, what workers
  /// have read ahead does not. The same on all ranks that are at the same
  /// batch. Between epochs, the start of the next.
  StateDict state_dict() const;
  /// The next loop goes on behind the last batch that was handed out before the
  /// state was taken. The number of ranks may differ from then, the batch size
  /// too: every other sample of the epoch comes exactly once. (Parts of
  /// `IterableSharding::kSource` need the same ranks, workers and batch size.)
  /// Map data sets read nothing that is skipped; iterable sources read and drop
  /// it. Throws `UsageError` where the state is of another data set or order.
  void load_state_dict(const StateDict& state);

  /// The state that checkpoints hold, for a `StateRegistry`. It holds a
  /// position only while a loop is open: after a `break` it is the start of the
  /// next epoch. If the loader is prepared, the batch in hand counts once
  /// `Accelerator::backward` was called since it was handed out, or once the
  /// next batch was asked for. Lives as long as this loader or a copy of it.
  std::shared_ptr<Stateful> stateful() const;

  const DataLoaderOptions& options() const;
  uint64_t seed() const;
  bool is_prepared() const;

 protected:
  AnyDataLoader(
      std::shared_ptr<const detail::BatchSource> source,
      DataLoaderOptions options);
  AnyDataLoader placed(detail::LoaderPlace place) const;
  AnyDataLoader skipping(int64_t num_batches) const;
  std::unique_ptr<detail::BatchCursor> open();

 private:
  struct State;
  std::shared_ptr<State> state_;
  int64_t num_skipped_ = 0;
};

/// Iterates over a data set in batches. Prepared by an `Accelerator`, it gives
/// each rank its share, on its device; by itself, everything on the CPU.
///
///     accelerate::DataLoader loader(
///         train_set, {.batch_size = 8, .shuffle = true, .num_workers = 2});
///     for (auto& batch : loader) { ... }
///
/// A data set is a `Dataset`, `BatchDataset`, `IterableSource` or `std::vector`
/// of samples. Workers call `get` or `get_batch` at the same time: reading must
/// be safe for several threads. A third argument makes a batch of a
/// `std::vector` of samples; `collate.h` says what happens without it.
///
/// What a data set throws is thrown where its batch would have come, as a
/// `DataError` that names the sample. Leaving the loop early ends the workers'
/// work and leaves no trace. With `dispatch_batches` all ranks must leave at
/// the same batch.
template <class D, class Collate = detail::DefaultCollate>
class DataLoader : public AnyDataLoader {
  static_assert(
      detail::Loadable<D>,
      "DataLoader: this type is not a dataset. It needs `size_t size() const` "
      "and `get(int64_t index)`, or `reset(int64_t epoch)` and `next()` if it "
      "is a stream (see datasets.h)");

 public:
  using Batch = typename detail::BatchType<D, Collate>::Type;

  explicit DataLoader(D data, DataLoaderOptions options = {})
      : DataLoader(std::move(data), std::move(options), Collate{}) {}
  DataLoader(D data, DataLoaderOptions options, Collate collate)
      : AnyDataLoader(
            detail::make_source(std::move(data), std::move(collate)),
            std::move(options)) {}

  /// Of the elements of a vector.
  template <class T>
  requires std::same_as<D, VectorDataset<T>>
  explicit DataLoader(std::vector<T> samples, DataLoaderOptions options = {})
      : DataLoader(D(std::move(samples)), std::move(options)) {}
  template <class T>
  requires std::same_as<D, VectorDataset<T>>
  DataLoader(std::vector<T> samples, DataLoaderOptions options, Collate collate)
      : DataLoader(
            D(std::move(samples)),
            std::move(options),
            std::move(collate)) {}

  class Iterator;
  /// Starts the next epoch.
  Iterator begin() { return Iterator(open()); }
  std::default_sentinel_t end() const { return {}; }

  /// The same loader for one rank; `Accelerator::prepare` calls it.
  DataLoader prepared(detail::LoaderPlace place) const {
    return DataLoader(placed(std::move(place)));
  }

  template <class D2, class C2>
  friend DataLoader<D2, C2> skip_first_batches(
      const DataLoader<D2, C2>& loader,
      int64_t num_batches);

 private:
  explicit DataLoader(AnyDataLoader loader)
      : AnyDataLoader(std::move(loader)) {}
};

template <class T>
explicit DataLoader(std::vector<T>, DataLoaderOptions = {})
    -> DataLoader<VectorDataset<T>>;
template <class T, class Collate>
DataLoader(std::vector<T>, DataLoaderOptions, Collate)
    -> DataLoader<VectorDataset<T>, Collate>;

/// A single pass over one epoch.
template <class D, class Collate>
class DataLoader<D, Collate>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(std::unique_ptr<detail::BatchCursor> cursor)
      : cursor_(std::move(cursor)) {}

  Batch& operator*() { return *static_cast<Batch*>(cursor_->batch()); }
  Batch* operator->() { return &**this; }
  Iterator& operator++() {
    cursor_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const {
    return cursor_->batch() == nullptr;
  }

 private:
  std::unique_ptr<detail::BatchCursor> cursor_;
};

/// The loader without the first batches (of this rank) of every epoch. It
/// shares the count of epochs with `loader`, so that one epoch can be run with
/// either. Skipped samples of map data sets are not read.
template <class D, class Collate>
DataLoader<D, Collate> skip_first_batches(
    const DataLoader<D, Collate>& loader,
    int64_t num_batches) {
  return DataLoader<D, Collate>(loader.skipping(num_batches));
}

} // namespace accelerate
