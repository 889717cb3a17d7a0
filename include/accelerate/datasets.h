// SPDX-License-Identifier: Apache-2.0
// Where samples come from: data in memory, a user's own class, torch's data
// sets, streams.
//
// Files of tokens are in `token_file.h`, CSV and JSON lines in `text_files.h`.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Something with a size and samples by index. Samples are what `collate.h`
/// makes batches of. A loader with worker threads calls `get` from several
/// threads at once: it must not change what the data set shares between calls.
///
///     struct Squares {
///       size_t size() const { return 100; }
///       std::pair<torch::Tensor, int64_t> get(int64_t i) const {
///         return {torch::full({2}, i), i * i};
///       }
///     };
template <class D>
concept PlainDataset = requires(D& data, int64_t index) {
  { data.size() } -> std::convertible_to<size_t>;
  data.get(index);
};

/// One whose samples are partly random (augmentation). The loader seeds the
/// generator from its own seed, the epoch and the index: what a sample becomes
/// depends on nothing else, neither on workers and ranks nor on where a run was
/// gone on with. Where a data set has both forms of `get`, loaders call this.
///
///     struct Flipped {
///       torch::Tensor images;
///       size_t size() const { return static_cast<size_t>(images.size(0)); }
///       torch::Tensor get(int64_t i, at::Generator& generator) const {
///         const auto coin = torch::rand({1}, generator).item<float>();
///         return coin < 0.5 ? images[i] : images[i].flip({-1});
///       }
///     };
template <class D>
concept RandomDataset =
    requires(D& data, int64_t index, at::Generator& generator) {
  { data.size() } -> std::convertible_to<size_t>;
  data.get(index, generator);
};

template <class D>
concept Dataset = PlainDataset<D> || RandomDataset<D>;

/// The same generator for code deeper inside of a `get` that a loader calls,
/// with either form. `torch::rand` without it uses one that all threads share:
/// not reproducible with workers. Throws `UsageError` where this thread reads
/// no sample for a loader.
ACCELERATE_API at::Generator& sample_generator();

/// A sample, whichever form of `get` there is.
template <Dataset D>
decltype(auto) get_sample(D& data, int64_t index, at::Generator& generator) {
  if constexpr (RandomDataset<D>) {
    return data.get(index, generator);
  } else {
    return data.get(index);
  }
}

/// A data set that makes whole batches faster than sample by sample. Where a
/// data set has both, loaders call `get_batch`.
template <class D>
concept BatchDataset = requires(D& data, std::span<const int64_t> indices) {
  { data.size() } -> std::convertible_to<size_t>;
  data.get_batch(indices);
};

/// A stream of samples. `reset(epoch)` starts an epoch at its first sample and
/// is called before the first `next` of every epoch, the first one too; `next`
/// gives nothing at the end, and nothing again after that. For one epoch every
/// rank must see the same samples in the same order, unless it shards by
/// itself. One thread at a time uses it.
///
///     struct Lines {
///       std::ifstream file;
///       void reset(int64_t) { file = std::ifstream("data.txt"); }
///       std::optional<std::string> next() {
///         std::string line;
///         return std::getline(file, line) ? std::optional(line)
///                                         : std::nullopt;
///       }
///     };
template <class S>
concept IterableSource = requires(S& source, int64_t epoch) {
  source.reset(epoch);
  // What `next` gives is an optional of something.
  { source.next().has_value() } -> std::convertible_to<bool>;
  *source.next();
};

/// The data set's own sample type.
template <Dataset D>
using SampleOf = std::decay_t<decltype(get_sample(
    std::declval<D&>(),
    int64_t{},
    std::declval<at::Generator&>()))>;
/// The type of a stream's elements.
template <IterableSource S>
using ElementOf = std::decay_t<decltype(*std::declval<S&>().next())>;

/// One tensor of each column: `batch[0]`, `batch[1]`. How many there are is
/// known when the program runs, so that structured bindings are refused.
class ACCELERATE_API TensorRow : public std::vector<at::Tensor> {
 public:
  using std::vector<at::Tensor>::vector;
};

/// Columns of equal length in memory; a sample is one row of each, a batch one
/// copy of rows per column.
class ACCELERATE_API TensorDataset {
 public:
  /// Columns that are not contiguous are copied once. Throws `UsageError` where
  /// there is no column or lengths differ.
  explicit TensorDataset(std::vector<at::Tensor> columns);

  size_t size() const;
  /// The rows, as views of the columns. Throws `UsageError` outside of `size`.
  TensorRow get(int64_t index) const;
  /// New tensors of `indices.size()` rows. Throws as `get`.
  TensorRow get_batch(std::span<const int64_t> indices) const;

 private:
  std::vector<at::Tensor> columns_;
};

/// Two columns of equal length, as pairs: `auto& [input, target] = batch`.
class ACCELERATE_API PairDataset {
 public:
  /// Throws as `TensorDataset`.
  PairDataset(at::Tensor inputs, at::Tensor targets);

  size_t size() const { return columns_.size(); }
  std::pair<at::Tensor, at::Tensor> get(int64_t index) const;
  std::pair<at::Tensor, at::Tensor> get_batch(
      std::span<const int64_t> indices) const;

 private:
  TensorDataset columns_;
};

/// The elements of a vector.
template <class T>
class VectorDataset {
 public:
  explicit VectorDataset(std::vector<T> samples)
      : samples_(std::move(samples)) {}

  size_t size() const { return samples_.size(); }
  const T& get(int64_t index) const {
    return samples_.at(static_cast<size_t>(index));
  }

 private:
  std::vector<T> samples_;
};

/// The samples `indices` of another data set, for example one part of a split.
/// Copies and other parts may share the data set.
template <Dataset D>
class SubsetDataset {
 public:
  SubsetDataset(D data, std::vector<int64_t> indices)
      : SubsetDataset(
            std::make_shared<D>(std::move(data)),
            std::move(indices)) {}
  SubsetDataset(std::shared_ptr<D> data, std::vector<int64_t> indices)
      : data_(std::move(data)), indices_(std::move(indices)) {}

  size_t size() const { return indices_.size(); }
  decltype(auto) get(int64_t index) requires PlainDataset<D> {
    return data_->get(indices_.at(static_cast<size_t>(index)));
  }
  decltype(auto) get(int64_t index, at::Generator& generator) requires
      RandomDataset<D> {
    return data_->get(indices_.at(static_cast<size_t>(index)), generator);
  }

 private:
  std::shared_ptr<D> data_;
  std::vector<int64_t> indices_;
};

namespace detail {

ACCELERATE_API std::vector<std::vector<int64_t>> split_randomly(
    int64_t size,
    const std::vector<double>& fractions,
    uint64_t seed);

} // namespace detail

/// Parts of a data set by fractions that add up to 1, in an order that `seed`
/// alone decides: the same on all ranks. Sizes are rounded down; what is left
/// goes to the first parts, one each. These are the parts of
/// `torch.utils.data.random_split` with a generator of that seed. Throws
/// `UsageError` where a fraction is negative or the sum is not 1.
///
///     auto parts = accelerate::random_split(
///         accelerate::VectorDataset(train_set), {0.9, 0.1}, 42);
///     accelerate::DataLoader train_loader(parts[0], {.batch_size = 8});
template <Dataset D>
std::vector<SubsetDataset<D>>
random_split(D data, const std::vector<double>& fractions, uint64_t seed) {
  const auto shared = std::make_shared<D>(std::move(data));
  std::vector<SubsetDataset<D>> parts;
  for (auto& indices : detail::split_randomly(
           static_cast<int64_t>(shared->size()), fractions, seed)) {
    parts.emplace_back(shared, std::move(indices));
  }
  return parts;
}

namespace detail {

ACCELERATE_API size_t torch_size(std::optional<size_t> size);

template <class D>
concept HasTorchGet = requires(D& data, size_t index) {
  data.get(index);
};

} // namespace detail

/// A map data set of `torch::data`: one with `get(size_t)`, whose samples are
/// then collated here, or a mapped one that collates by itself
/// (`map(Stack<>())`).
///
///     accelerate::TorchDataset mnist{torch::data::datasets::MNIST(folder)};
///
/// `size` throws `UsageError` where the data set does not know its own.
template <class D>
class TorchDataset {
 public:
  explicit TorchDataset(D data) : data_(std::move(data)) {}

  size_t size() const { return detail::torch_size(data_.size()); }
  auto get(int64_t index) requires detail::HasTorchGet<D> {
    return data_.get(static_cast<size_t>(index));
  }
  auto get_batch(std::span<const int64_t> indices) requires(
      !detail::HasTorchGet<D>) {
    const std::vector<size_t> request(indices.begin(), indices.end());
    return data_.get_batch(request);
  }

 private:
  D data_;
};

/// A stream out of a function: `start(epoch)` returns the function that gives
/// one sample after the other.
///
///     accelerate::GeneratorSource numbers([](int64_t epoch) {
///       return [i = 0]() mutable {
///         return i < 10 ? std::optional(torch::tensor(i++)) : std::nullopt;
///       };
///     });
template <class Start>
class GeneratorSource {
 public:
  using Next = std::invoke_result_t<Start&, int64_t>;

  explicit GeneratorSource(Start start) : start_(std::move(start)) {}

  void reset(int64_t epoch) { next_.emplace(start_(epoch)); }
  std::invoke_result_t<Next&> next() {
    if (!next_) {
      return std::nullopt;
    }
    auto sample = (*next_)();
    if (!sample) {
      next_.reset();
    }
    return sample;
  }

 private:
  Start start_;
  std::optional<Next> next_;
};

} // namespace accelerate

/// Only there to say why `auto [input, target] = row` does not compile.
template <std::same_as<accelerate::TensorRow> Row>
struct std::tuple_size<Row> {
  static_assert(
      !std::same_as<Row, accelerate::TensorRow>,
      "the number of a TensorDataset's columns is not known to the compiler: "
      "write batch[0] and batch[1], or take a PairDataset");
  static constexpr size_t value = 0;
};
