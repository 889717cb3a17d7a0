// SPDX-License-Identifier: Apache-2.0
// The interface through which the compiled part of the loader uses datasets,
// whose batch types it does not know. Programs use `data_loader.h`.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/data/collate.h"
#include "accelerate/datasets.h"
#include "accelerate/detail/tree_bytes.h"
#include "accelerate/error.h"
#include "accelerate/export.h"
#include "accelerate/state/tree.h"

namespace accelerate::detail {

/// A batch or a sample whose type only its `BatchSource` knows.
using Any = std::shared_ptr<void>;

/// One pass over an iterable source.
class ACCELERATE_API ElementStream {
 public:
  virtual ~ElementStream();
  /// Returns the next element, or null at the end.
  virtual Any next() = 0;
};

/// The values that seed the random generator of a sample, in addition to its
/// index.
struct SampleSeed {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

/// Marks this thread as reading samples. Scopes may be nested.
class ACCELERATE_API ReadingScope {
 public:
  explicit ReadingScope(SampleSeed seed);
  ~ReadingScope();
  ReadingScope(const ReadingScope&) = delete;
  ReadingScope& operator=(const ReadingScope&) = delete;

  /// Makes `sample_generator` return the generator of this sample.
  void begin(int64_t index);
  /// The generator of the current sample, seeded on first use.
  at::Generator& generator();

 private:
  SampleSeed seed_;
  std::optional<uint64_t> unused_seed_;
  at::Generator generator_;
  ReadingScope* outer_;
};

class ACCELERATE_API BatchSource {
 public:
  static constexpr int64_t kUnknown = -1;

  virtual ~BatchSource();
  /// The number of samples, or `kUnknown` for an iterable source.
  virtual int64_t size() const = 0;
  /// Reads a batch of a map-style dataset. Several threads call it at once.
  virtual Any read(std::span<const int64_t> indices, SampleSeed seed) const;
  /// Opens part `index` of `count` of an iterable source.
  virtual std::unique_ptr<ElementStream>
  open(int64_t epoch, int64_t index, int64_t count) const;
  /// Collates the elements at `positions` of the stream into a batch.
  virtual Any collate(
      const std::vector<Any>& elements,
      std::span<const int64_t> positions) const;

  virtual void visit(const Any& batch, tree::Visitor& visitor) const = 0;
  /// Returns a deep copy of the batch.
  virtual Any clone(const Any& batch) const = 0;
  virtual void write(const Any& batch, tree::ByteWriter& out) const = 0;
  virtual Any read_bytes(tree::ByteReader& in) const = 0;
};

/// Call it in a catch block. Throws a `DataError` that names the samples and
/// contains the caught exception as a nested exception.
[[noreturn]] ACCELERATE_API void throw_data_error(
    const char* doing,
    std::span<const int64_t> samples);
[[noreturn]] ACCELERATE_API void throw_not_portable();
[[noreturn]] ACCELERATE_API void throw_not_copyable();
[[noreturn]] ACCELERATE_API void throw_no_shards();
[[noreturn]] ACCELERATE_API void throw_not_shared();
ACCELERATE_API at::Tensor clone_tensor(const at::Tensor& tensor);

/// The part of a `BatchSource` that depends only on the type of its batches.
template <class Batch>
class TypedSource : public BatchSource {
 public:
  void visit(const Any& batch, tree::Visitor& visitor) const override {
    tree::walk(*static_cast<Batch*>(batch.get()), visitor);
  }
  Any clone(const Any& batch) const override {
    if constexpr (std::copy_constructible<Batch>) {
      return std::make_shared<Batch>(
          tree::map(*static_cast<const Batch*>(batch.get()), clone_tensor));
    } else {
      throw_not_copyable();
    }
  }
  void write(const Any& batch, tree::ByteWriter& out) const override {
    if constexpr (tree::Portable<Batch>) {
      tree::write(*static_cast<const Batch*>(batch.get()), out);
    } else {
      throw_not_portable();
    }
  }
  Any read_bytes(tree::ByteReader& in) const override {
    if constexpr (tree::Portable<Batch>) {
      auto batch = std::make_shared<Batch>();
      tree::read(*batch, in);
      return batch;
    } else {
      throw_not_portable();
    }
  }
};

/// `collate` as a function object.
struct DefaultCollate {
  template <class Sample>
  auto operator()(const std::vector<Sample>& samples) const {
    return collate(samples);
  }
};

template <class D>
struct SampleType {
  using Type = SampleOf<D>;
};
template <IterableSource S>
struct SampleType<S> {
  using Type = ElementOf<S>;
};

template <class D, class Collate>
struct BatchType {
  using Type = std::remove_cvref_t<std::invoke_result_t<
      const Collate&,
      std::vector<typename SampleType<D>::Type>>>;
};
template <BatchDataset D>
struct BatchType<D, DefaultCollate> {
  using Type = std::remove_cvref_t<decltype(std::declval<D&>().get_batch(
      std::span<const int64_t>()))>;
};

template <class D, class Collate>
class MapSource final
    : public TypedSource<typename BatchType<D, Collate>::Type> {
 public:
  using Batch = typename BatchType<D, Collate>::Type;

  MapSource(D data, Collate collate)
      : data_(std::move(data)), collate_(std::move(collate)) {}

  int64_t size() const override { return static_cast<int64_t>(data_.size()); }

  Any read(std::span<const int64_t> indices, SampleSeed seed) const override {
    if constexpr (BatchDataset<D> && std::is_same_v<Collate, DefaultCollate>) {
      try {
        return std::make_shared<Batch>(data_.get_batch(indices));
      } catch (...) {
        throw_data_error("reading", indices);
      }
    } else {
      ReadingScope scope(seed);
      std::vector<SampleOf<D>> samples;
      samples.reserve(indices.size());
      for (const int64_t& index : indices) {
        try {
          scope.begin(index);
          if constexpr (RandomDataset<D>) {
            samples.push_back(data_.get(index, scope.generator()));
          } else {
            samples.push_back(data_.get(index));
          }
        } catch (...) {
          throw_data_error("reading", {&index, 1});
        }
      }
      try {
        return std::make_shared<Batch>(collate_(std::move(samples)));
      } catch (...) {
        throw_data_error("collating", indices);
      }
    }
  }

 private:
  // Mutable because `get` of torch::data is not const.
  mutable D data_;
  const Collate collate_;
};

template <class S, class Collate>
class StreamSource final
    : public TypedSource<typename BatchType<S, Collate>::Type> {
 public:
  using Batch = typename BatchType<S, Collate>::Type;
  using Sample = ElementOf<S>;

  StreamSource(S source, Collate collate)
      : source_(std::make_shared<S>(std::move(source))),
        collate_(std::move(collate)) {}

  int64_t size() const override { return BatchSource::kUnknown; }

  std::unique_ptr<ElementStream>
  open(int64_t epoch, int64_t index, int64_t count) const override {
    // Each loop and each worker copies the source, because they may run
    // concurrently.
    std::shared_ptr<S> source;
    if constexpr (std::copy_constructible<S>) {
      source = std::make_shared<S>(*source_);
    } else {
      if (source_.use_count() > 1) {
        throw_not_shared();
      }
      source = source_;
    }
    if constexpr (requires { source->shard(index, count); }) {
      source->shard(index, count);
    } else if (count > 1) {
      throw_no_shards();
    }
    source->reset(epoch);
    return std::make_unique<Stream>(std::move(source));
  }

  Any collate(
      const std::vector<Any>& elements,
      std::span<const int64_t> positions) const override {
    std::vector<Sample> samples;
    samples.reserve(elements.size());
    for (const auto& element : elements) {
      samples.push_back(*static_cast<const Sample*>(element.get()));
    }
    try {
      return std::make_shared<Batch>(collate_(std::move(samples)));
    } catch (...) {
      throw_data_error("collating", positions);
    }
  }

 private:
  class Stream final : public ElementStream {
   public:
    explicit Stream(std::shared_ptr<S> source) : source_(std::move(source)) {}
    Any next() override {
      try {
        auto value = source_->next();
        if (!value.has_value()) {
          return nullptr;
        }
        ++position_;
        return std::make_shared<Sample>(std::move(*value));
      } catch (...) {
        throw_data_error("reading", {&position_, 1});
      }
    }

   private:
    std::shared_ptr<S> source_;
    int64_t position_ = 0;
  };

  std::shared_ptr<S> source_;
  const Collate collate_;
};

template <class D>
concept Loadable = Dataset<D> || BatchDataset<D> || IterableSource<D>;

template <class D, class Collate>
std::shared_ptr<const BatchSource> make_source(D data, Collate collate) {
  if constexpr (IterableSource<D>) {
    return std::make_shared<StreamSource<D, Collate>>(
        std::move(data), std::move(collate));
  } else {
    return std::make_shared<MapSource<D, Collate>>(
        std::move(data), std::move(collate));
  }
}

} // namespace accelerate::detail
