// SPDX-License-Identifier: Apache-2.0
#include "accelerate/detail/batch_source.h"

#include <ATen/ATen.h>

#include <exception>
#include <string>

#include "core/base/str.h"

namespace accelerate::detail {
namespace {

constexpr size_t kMostNamed = 8;

std::string names(std::span<const int64_t> samples) {
  std::string text = samples.size() == 1 ? "sample " : "samples ";
  for (size_t i = 0; i < std::min(samples.size(), kMostNamed); ++i) {
    text += str_cat(i > 0 ? ", " : "", samples[i]);
  }
  return samples.size() > kMostNamed
             ? str_cat(text, ", ... (", samples.size(), " samples)")
             : text;
}

std::string current_message() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

} // namespace

ElementStream::~ElementStream() = default;
BatchSource::~BatchSource() = default;

Any BatchSource::read(std::span<const int64_t> /*indices*/, SampleSeed) const {
  throw UsageError("[DataLoader] An iterable source cannot be read by index");
}

std::unique_ptr<ElementStream> BatchSource::open(
    int64_t /*epoch*/,
    int64_t /*index*/,
    int64_t /*count*/) const {
  throw UsageError(
      "[DataLoader] A map-style dataset cannot be read as a stream");
}

Any BatchSource::collate(
    const std::vector<Any>& /*elements*/,
    std::span<const int64_t> /*positions*/) const {
  throw UsageError(
      "[DataLoader] A map-style dataset collates batches when it reads them");
}

void throw_data_error(const char* doing, std::span<const int64_t> samples) {
  std::throw_with_nested(DataError(str_cat(
      "[DataLoader] ", doing, " ", names(samples), ": ", current_message())));
}

void throw_not_portable() {
  throw UsageError(
      "[DataLoader] dispatch_batches does not support batches of this type. "
      "Set it to false, or write a collate function that returns tensors, "
      "numbers, strings, containers of these or a struct with tensor_fields");
}

void throw_not_copyable() {
  throw UsageError(
      "[DataLoader] even_batches needs batches that can be copied. Set "
      "even_batches to false or drop_last to true");
}

void throw_no_shards() {
  throw UsageError(
      "[DataLoader] IterableSharding::kSource needs a source with shard(index, "
      "count). Add that function, or use IterableSharding::kElement");
}

void throw_not_shared() {
  throw UsageError(
      "[DataLoader] An iterable source that cannot be copied supports one "
      "worker and one loop at a time. End the other loop first, or make the "
      "source copyable");
}

at::Tensor clone_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.clone() : tensor;
}

} // namespace accelerate::detail
