// SPDX-License-Identifier: Apache-2.0
// Batches of a data set, each rank its own.
#pragma once

#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accelerate/datasets.h"
#include "accelerate/export.h"
#include "accelerate/samplers.h"
#include "accelerate/tree.h"

namespace accelerate {

struct ACCELERATE_API DataLoaderOptions {
  /// Samples per batch and rank.
  int64_t batch_size = 1;
  /// A new order every epoch. It depends on `seed` and the epoch alone.
  bool shuffle = false;
  /// Leave out what does not fill a batch (and a round of all ranks).
  bool drop_last = false;
  /// Where the ranks cannot have equally many full batches, begin the data set
  /// again to fill up. Otherwise some ranks get fewer or shorter batches.
  bool even_batches = true;
  /// Drawn from torch's default generator where not given.
  std::optional<uint64_t> seed = {};
};

/// The indices of one epoch: `size` numbers, shuffled where asked.
ACCELERATE_API std::vector<int64_t> epoch_order(
    int64_t size,
    const DataLoaderOptions& options,
    uint64_t seed,
    int64_t epoch);

/// Number of batches that a rank gets of `size` samples.
ACCELERATE_API int64_t
num_batches(int64_t size, const DataLoaderOptions& options, ShardOptions shard);

/// Batch `index` of a rank: whole batches are dealt out to ranks in turn.
ACCELERATE_API std::vector<int64_t> batch_indices(
    const std::vector<int64_t>& order,
    const DataLoaderOptions& options,
    ShardOptions shard,
    int64_t index);

namespace detail {

ACCELERATE_API void check(const DataLoaderOptions& options);
ACCELERATE_API uint64_t draw_seed();
ACCELERATE_API at::Tensor to_loader_device(
    const at::Tensor& tensor,
    const std::optional<c10::Device>& device);

template <class D>
auto make_batch(D& data, const std::vector<int64_t>& indices) {
  if constexpr (BatchDataset<D>) {
    return data.get_batch(std::span<const int64_t>(indices));
  } else {
    std::vector<std::decay_t<decltype(data.get(int64_t{}))>> samples;
    samples.reserve(indices.size());
    for (const int64_t index : indices) {
      samples.push_back(data.get(index));
    }
    return tree::stack(samples);
  }
}

} // namespace detail

/// Iterates over a data set in batches. Prepared by an `Accelerator`, it gives
/// each rank its share, on its device; by itself, everything on the CPU.
/// Copies share the data set.
///
///     accelerate::DataLoader loader(train_set, {.batch_size = 8, .shuffle =
///     true}); for (auto& batch : loader) { ... }
template <class D>
requires Dataset<D> || BatchDataset<D>
class DataLoader {
 public:
  using Batch = decltype(detail::make_batch(
      std::declval<D&>(),
      std::declval<const std::vector<int64_t>&>()));

  explicit DataLoader(D data, DataLoaderOptions options = {})
      : data_(std::make_shared<D>(std::move(data))),
        options_(options),
        seed_(options.seed ? *options.seed : detail::draw_seed()) {
    detail::check(options_);
  }

  class Iterator;
  /// Starts the next epoch.
  Iterator begin() { return Iterator(*this, epoch_++); }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of an epoch for this rank.
  int64_t size() const { return num_batches(num_samples(), options_, shard_); }
  /// Samples in the data set.
  int64_t num_samples() const { return static_cast<int64_t>(data_->size()); }
  /// Samples that all ranks together take per step.
  int64_t total_batch_size() const {
    return options_.batch_size * shard_.world_size;
  }
  /// The epoch that the next `begin` starts. Counts from 0 by itself.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }

  const DataLoaderOptions& options() const { return options_; }
  uint64_t seed() const { return seed_; }
  bool is_prepared() const { return is_prepared_; }

  /// The same loader for one rank; batches go to `device` where it is given.
  /// `Accelerator::prepare` calls it.
  DataLoader prepared(
      ShardOptions shard,
      std::optional<c10::Device> device,
      uint64_t seed) const {
    DataLoader loader = *this;
    loader.shard_ = shard;
    loader.device_ = device;
    loader.seed_ = seed;
    loader.is_prepared_ = true;
    return loader;
  }

 private:
  std::shared_ptr<D> data_;
  DataLoaderOptions options_;
  uint64_t seed_;
  ShardOptions shard_;
  std::optional<c10::Device> device_;
  int64_t epoch_ = 0;
  bool is_prepared_ = false;
};

/// A single pass over one epoch. Valid while its loader lives.
template <class D>
requires Dataset<D> || BatchDataset<D>
class DataLoader<D>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Iterator(const DataLoader& loader, int64_t epoch)
      : loader_(&loader),
        order_(epoch_order(
            loader.num_samples(),
            loader.options_,
            loader.seed_,
            epoch)),
        size_(loader.size()) {
    load();
  }

  Batch& operator*() { return *batch_; }
  Batch* operator->() { return &*batch_; }
  Iterator& operator++() {
    ++index_;
    load();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return index_ >= size_; }

 private:
  void load() {
    batch_.reset();
    if (index_ < size_) {
      const auto indices =
          batch_indices(order_, loader_->options_, loader_->shard_, index_);
      batch_ = detail::make_batch(*loader_->data_, indices);
      tree::for_each(*batch_, [this](at::Tensor& t) {
        t = detail::to_loader_device(t, loader_->device_);
      });
    }
  }

  const DataLoader* loader_;
  std::vector<int64_t> order_;
  int64_t size_;
  int64_t index_ = 0;
  std::optional<Batch> batch_;
};

} // namespace accelerate
