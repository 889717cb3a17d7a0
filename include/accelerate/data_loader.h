// SPDX-License-Identifier: Apache-2.0
// Loaders that give each rank its batches of a dataset.
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/data/data_loader_options.h"
#include "accelerate/datasets.h"
#include "accelerate/detail/batch_source.h"
#include "accelerate/detail/loader_context.h"
#include "accelerate/export.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

/// The base class of loaders, which does not depend on the type of the batches.
/// Copies share the dataset and the position.
class ACCELERATE_API AnyDataLoader {
 public:
  /// The number of batches per epoch on this rank. If a `batch_sampler` varies
  /// this number, returns that of the next epoch. Throws `UsageError` for
  /// iterable sources.
  int64_t size() const;
  /// The number of samples in the dataset. Throws `UsageError` for iterable
  /// sources.
  int64_t num_samples() const;
  /// The number of samples that all ranks together use per step. Throws
  /// `UsageError` if a `batch_sampler` varies this number.
  int64_t total_batch_size() const;
  /// Sets the epoch of the next loop. Without this call, epochs count up from
  /// 0.
  void set_epoch(int64_t epoch);

  /// The position in the current epoch. It counts the batches that were
  /// returned, not those that workers have read ahead. Ranks that are at the
  /// same batch have the same position. Between epochs, the position is the
  /// start of the next epoch.
  StateDict state_dict() const;
  /// Makes the next loop resume after the last batch that was returned before
  /// the state was taken. The number of ranks and the batch size may differ,
  /// and each remaining sample of the epoch is returned exactly once. (With
  /// `IterableSharding::kSource`, the number of ranks, the number of workers
  /// and the batch size must be the same.) Skipped samples of map-style
  /// datasets are not read. Iterable sources read and drop them. Throws
  /// `UsageError` if the state belongs to a different dataset or order.
  void load_state_dict(const StateDict& state);

  /// The state that checkpoints contain, for a `StateRegistry`. It contains a
  /// position inside an epoch only while a loop is running. After a `break`,
  /// the position is the start of the next epoch. In a prepared loader, the
  /// current batch counts as used as soon as `Accelerator::backward` is called
  /// or the next batch is requested. The object is valid as long as this loader
  /// or a copy of it exists.
  std::shared_ptr<Stateful> stateful() const;

  const DataLoaderOptions& options() const;
  uint64_t seed() const;
  bool is_prepared() const;

 protected:
  AnyDataLoader(
      std::shared_ptr<const detail::BatchSource> source,
      DataLoaderOptions options);
  AnyDataLoader placed(detail::LoaderContext context) const;
  AnyDataLoader skipping(int64_t num_batches) const;
  std::unique_ptr<detail::BatchCursor> open();

 private:
  struct State;
  std::shared_ptr<State> state_;
  int64_t num_skipped_ = 0;
};

/// Iterates over a dataset in batches. A loader that is not prepared returns
/// all batches, on the CPU. A loader that an `Accelerator` has prepared returns
/// the batches of this rank, on the rank's device.
///
///     accelerate::DataLoader loader(
///         train_set, {.batch_size = 8, .shuffle = true, .num_workers = 2});
///     for (auto& batch : loader) { ... }
///
/// A dataset is a `Dataset`, `BatchDataset`, `IterableSource` or `std::vector`
/// of samples. Workers call `get` or `get_batch` concurrently, so reading must
/// be thread-safe. The third argument is a function that turns a `std::vector`
/// of samples into a batch. `collate.h` describes the default.
///
/// If a dataset throws, the loop throws a `DataError` that names the sample,
/// when it reaches the batch of this sample. Leaving the loop early stops the
/// workers and has no other effect. With `dispatch_batches`, all ranks must
/// leave the loop at the same batch.
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

  /// A loader over the elements of a vector.
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

  /// Returns the same loader for one rank. `Accelerator::prepare` calls this
  /// function.
  DataLoader prepared(detail::LoaderContext context) const {
    return DataLoader(placed(std::move(context)));
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

/// Returns a loader that skips the first `num_batches` batches of this rank in
/// every epoch. It shares the epoch counter with `loader`, so you can use
/// either of them for each epoch. Skipped samples of map-style datasets are not
/// read.
template <class D, class Collate>
DataLoader<D, Collate> skip_first_batches(
    const DataLoader<D, Collate>& loader,
    int64_t num_batches) {
  return DataLoader<D, Collate>(loader.skipping(num_batches));
}

} // namespace accelerate
