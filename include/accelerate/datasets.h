// SPDX-License-Identifier: Apache-2.0
// Sources of samples: data in memory, custom classes, torch's datasets and
// streams.
//
// `token_file.h` reads files of tokens, and `text_files.h` reads CSV and JSON
// Lines files.
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

/// A dataset with a size, whose samples are read by index. `collate.h`
/// describes how samples become batches. With worker threads, a loader calls
/// `get` from several threads at once, so `get` must not modify shared members.
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

/// A dataset whose samples are partly random (augmentation). The loader seeds
/// the generator with its seed, the epoch and the index, so a sample does not
/// depend on the number of workers or ranks, or on where a run was resumed. If
/// a dataset has both forms of `get`, loaders call this one.
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

/// The generator of the current sample, for code called by either form of
/// `get`. Without a generator, `torch::rand` uses one that all threads share,
/// so its results are not reproducible with workers. Throws `UsageError` if
/// this thread is not reading a sample for a loader.
ACCELERATE_API at::Generator& sample_generator();

/// Calls whichever form of `get` exists.
template <Dataset D>
decltype(auto) get_sample(D& data, int64_t index, at::Generator& generator) {
  if constexpr (RandomDataset<D>) {
    return data.get(index, generator);
  } else {
    return data.get(index);
  }
}

/// A dataset that reads whole batches faster than single samples. If a
/// dataset also has `get`, loaders call `get_batch`.
template <class D>
concept BatchDataset = requires(D& data, std::span<const int64_t> indices) {
  { data.size() } -> std::convertible_to<size_t>;
  data.get_batch(indices);
};

/// A stream of samples. `reset(epoch)` rewinds to the first sample. It is
/// called before the first `next` of every epoch, including the first epoch.
/// After the last sample, `next` returns an empty optional, even if it is
/// called again. In each epoch, all ranks must read the same samples in the
/// same order, unless the source shards itself. Only one thread at a time uses
/// the source.
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
  // `next` returns an optional.
  { source.next().has_value() } -> std::convertible_to<bool>;
  *source.next();
};

/// The type of the dataset's samples.
template <Dataset D>
using SampleOf = std::decay_t<decltype(get_sample(
    std::declval<D&>(),
    int64_t{},
    std::declval<at::Generator&>()))>;
/// The type of a stream's elements.
template <IterableSource S>
using ElementOf = std::decay_t<decltype(*std::declval<S&>().next())>;

/// One tensor per column: `batch[0]`, `batch[1]`. Structured bindings do not
/// compile, because the number of columns is known only at run time.
class ACCELERATE_API TensorRow : public std::vector<at::Tensor> {
 public:
  using std::vector<at::Tensor>::vector;
};

/// Columns of equal length in memory. A sample contains one row of each column.
/// Creating a batch takes one copy per column.
class ACCELERATE_API TensorDataset {
 public:
  /// Non-contiguous columns are copied once. Throws `UsageError` if there are
  /// no columns or their lengths differ.
  explicit TensorDataset(std::vector<at::Tensor> columns);

  size_t size() const;
  /// Returns the row as views of the columns. Throws `UsageError` if `index` is
  /// out of range.
  TensorRow get(int64_t index) const;
  /// Returns new tensors with `indices.size()` rows. Throws the same errors as
  /// `get`.
  TensorRow get_batch(std::span<const int64_t> indices) const;

 private:
  std::vector<at::Tensor> columns_;
};

/// Two columns of equal length. Its samples and batches are pairs: `auto&
/// [input, target] = batch`.
class ACCELERATE_API PairDataset {
 public:
  /// Throws the same errors as `TensorDataset`.
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

/// The samples of a dataset at these indices, for example one part of a split.
/// Copies and other subsets may share the dataset.
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

/// Splits a dataset randomly by fractions that add up to 1. The split depends
/// only on `seed`, so it is the same on all ranks. Sizes are rounded down, and
/// the first parts get one of the remaining samples each. The result equals
/// `torch.utils.data.random_split` with a generator with this seed. Throws
/// `UsageError` if a fraction is negative or the sum is not 1.
///
///     auto parts = accelerate::random_split(
///         accelerate::VectorDataset(train_set), {0.9, 0.1}, 42);
///     accelerate::DataLoader train_loader(parts[0], {.batch_size = 8});
template <Dataset D>
std::vector<SubsetDataset<D>>
random_split(D data, const std::vector<double>& fractions, uint64_t seed) {
  const auto shared = std::make_shared<D>(std::move(data));
  std::vector<SubsetDataset<D>> subsets;
  for (auto& indices : detail::split_randomly(
           static_cast<int64_t>(shared->size()), fractions, seed)) {
    subsets.emplace_back(shared, std::move(indices));
  }
  return subsets;
}

namespace detail {

ACCELERATE_API size_t torch_size(std::optional<size_t> size);

template <class D>
concept HasTorchGet = requires(D& data, size_t index) {
  data.get(index);
};

} // namespace detail

/// Adapts a map-style dataset of `torch::data`. Either the dataset has
/// `get(size_t)`, and the loader collates its samples, or it is a mapped
/// dataset that collates its own samples (`map(Stack<>())`).
///
///     accelerate::TorchDataset mnist{torch::data::datasets::MNIST(folder)};
///
/// `size` throws `UsageError` if the dataset does not know its size.
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

/// Makes a stream from a function. `start(epoch)` must return a function that
/// returns one sample per call.
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

/// Exists only to explain why `auto [input, target] = row` does not compile.
template <std::same_as<accelerate::TensorRow> Row>
struct std::tuple_size<Row> {
  static_assert(
      !std::same_as<Row, accelerate::TensorRow>,
      "the number of columns of a TensorDataset is not known to the compiler: "
      "write batch[0] and batch[1], or use a PairDataset");
  static constexpr size_t value = 0;
};
