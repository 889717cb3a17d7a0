// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/token_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "accelerate/error.h"
#include "core/base/atomic_file.h"
#include "core/base/mapped_file.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

// Ids are used directly in mapped memory, so they must be little-endian.
static_assert(std::endian::native == std::endian::little);

int64_t bytes_of(TokenWidth width) {
  return static_cast<int64_t>(width);
}

template <class Id>
void widen(const std::byte* from, int64_t count, int64_t* to) {
  const auto* ids = reinterpret_cast<const Id*>(from);
  std::copy(ids, ids + count, to);
}

} // namespace

struct TokenFileDataset::Impl {
  struct Shard {
    Shard(const std::filesystem::path& file, TokenWidth width, int64_t first)
        : mapping(file, "TokenFileDataset", "file of token ids"),
          first_token(first) {
      const auto num_bytes = static_cast<int64_t>(mapping.bytes().size());
      if (num_bytes % bytes_of(width) != 0) {
        throw DataError(str_cat(
            "[TokenFileDataset] '",
            file.string(),
            "' has ",
            num_bytes,
            " bytes, which is not a multiple of ",
            bytes_of(width),
            ", the width of a token. The file is truncated, or its tokens have "
            "a different width"));
      }
      num_tokens = num_bytes / bytes_of(width);
    }

    MappedFile mapping;
    int64_t first_token;
    int64_t num_tokens = 0;
  };

  // Treats all files as one text. The caller checks the range.
  void copy_tokens(int64_t first, int64_t count, int64_t* to) const {
    auto shard = std::upper_bound(
                     shards.begin(),
                     shards.end(),
                     first,
                     [](int64_t token, const auto& s) {
                       return token < s->first_token;
                     }) -
                 1;
    while (count > 0) {
      const int64_t offset = first - (*shard)->first_token;
      const int64_t here = std::min(count, (*shard)->num_tokens - offset);
      const auto* from =
          (*shard)->mapping.bytes().data() + offset * bytes_of(options.width);
      if (options.width == TokenWidth::k16) {
        widen<uint16_t>(from, here, to);
      } else {
        widen<uint32_t>(from, here, to);
      }
      first += here;
      count -= here;
      to += here;
      ++shard;
    }
  }

  TokenFileOptions options;
  std::vector<std::unique_ptr<const Shard>> shards;
  int64_t num_tokens = 0;
  int64_t num_samples = 0;
};

TokenFileDataset::TokenFileDataset(
    const std::vector<std::filesystem::path>& files,
    TokenFileOptions options) {
  if (files.empty() || options.sequence_length < 1) {
    throw UsageError(str_cat(
        "[TokenFileDataset] Got ",
        files.size(),
        " files and sequence_length ",
        options.sequence_length,
        ". Both must be at least 1"));
  }
  auto impl = std::make_shared<Impl>();
  impl->options = options;
  for (const auto& file : files) {
    impl->shards.push_back(
        std::make_unique<Impl::Shard>(file, options.width, impl->num_tokens));
    impl->num_tokens += impl->shards.back()->num_tokens;
  }
  const int64_t after = options.shift_labels ? 1 : 0;
  impl->num_samples =
      std::max<int64_t>(impl->num_tokens - after, 0) / options.sequence_length;
  if (impl->num_samples == 0) {
    throw DataError(str_cat(
        "[TokenFileDataset] '",
        files[0].string(),
        files.size() > 1 ? str_cat("' and ", files.size() - 1, " more") : "'",
        files.size() > 1 ? " have " : " has ",
        impl->num_tokens,
        " tokens, but one sample needs ",
        options.sequence_length + after,
        ". Lower sequence_length"));
  }
  impl_ = std::move(impl);
}

size_t TokenFileDataset::size() const {
  return static_cast<size_t>(impl_->num_samples);
}

int64_t TokenFileDataset::num_tokens() const {
  return impl_->num_tokens;
}

TokenSample TokenFileDataset::get(int64_t index) const {
  const auto batch = get_batch({&index, 1});
  return {batch.input_ids.select(0, 0), batch.labels.select(0, 0)};
}

TokenSample TokenFileDataset::get_batch(
    std::span<const int64_t> indices) const {
  const int64_t length = impl_->options.sequence_length;
  const auto size = static_cast<int64_t>(indices.size());
  TokenSample batch{
      at::empty({size, length}, at::kLong),
      at::empty({size, length}, at::kLong)};
  auto* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<int64_t>();
  const int64_t shift = impl_->options.shift_labels ? 1 : 0;
  for (const int64_t index : indices) {
    if (index < 0 || index >= impl_->num_samples) {
      throw UsageError(str_cat(
          "[TokenFileDataset] sample is ",
          index,
          ", expected 0 to ",
          impl_->num_samples - 1));
    }
    impl_->copy_tokens(index * length, length, ids);
    impl_->copy_tokens(index * length + shift, length, labels);
    ids += length;
    labels += length;
  }
  return batch;
}

namespace {

template <class Id>
void write_ids(AtomicFile& file, std::span<const int64_t> ids) {
  std::vector<Id> narrow;
  narrow.reserve(ids.size());
  for (const int64_t id : ids) {
    if (id < 0 || id > std::numeric_limits<Id>::max()) {
      throw UsageError(str_cat(
          "[write_token_file] Token id ",
          narrow.size(),
          " is ",
          id,
          ", expected 0 to ",
          std::numeric_limits<Id>::max(),
          sizeof(Id) == 2 ? ". Write 32-bit tokens" : ""));
    }
    narrow.push_back(static_cast<Id>(id));
  }
  file.write(std::as_bytes(std::span(narrow)));
}

} // namespace

void write_token_file(
    const std::filesystem::path& file,
    std::span<const int64_t> ids,
    TokenWidth width) {
  AtomicFile out(file);
  if (width == TokenWidth::k16) {
    write_ids<uint16_t>(out, ids);
  } else {
    write_ids<uint32_t>(out, ids);
  }
  out.commit();
}

} // namespace accelerate
