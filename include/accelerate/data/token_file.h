// SPDX-License-Identifier: Apache-2.0
// Files of token ids for language models: only ids, little-endian, 16 or 32
// bits each, as nanoGPT and others write them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

enum class TokenWidth { k16 = 2, k32 = 4 };

struct ACCELERATE_API TokenFileOptions {
  /// Tokens per sample.
  int64_t sequence_length = 1024;
  TokenWidth width = TokenWidth::k16;
  /// False: `labels` equal `input_ids`, for models that shift them when
  /// computing the loss (as Hugging Face's and ours do). True: `labels[i]` is
  /// the token after `input_ids[i]`.
  bool shift_labels = false;
};

/// One sample, [sequence_length], or a batch, [n, sequence_length]; kLong. The
/// two never share memory.
struct ACCELERATE_API TokenSample {
  at::Tensor input_ids;
  at::Tensor labels;
};
inline auto tensor_fields(TokenSample& s) {
  return std::tie(s.input_ids, s.labels);
}
inline auto field_names(const TokenSample&) {
  return std::array{"input_ids", "labels"};
}

/// Consecutive samples of `sequence_length` tokens from files that form one
/// long text: a sample may start in one file and end in the next. The rest at
/// the end of the last file is dropped. Files are mapped, not read: memory
/// contains only accessed pages, which processes share. Files must not be
/// truncated during use. Copies share the mapping; any number of threads may
/// read.
///
///     accelerate::TokenFileDataset train(
///         {"train_000.bin", "train_001.bin"}, {.sequence_length = 1024});
class ACCELERATE_API TokenFileDataset {
 public:
  /// Throws `SystemError` if a file cannot be read, `DataError` if one ends
  /// inside a token or all together are shorter than one sample, `UsageError`
  /// if there is no file or `sequence_length` is below 1.
  explicit TokenFileDataset(
      const std::vector<std::filesystem::path>& files,
      TokenFileOptions options = {});

  size_t size() const;
  /// The number of tokens in all files.
  int64_t num_tokens() const;
  /// Throws `UsageError` if `index` is not below `size`.
  TokenSample get(int64_t index) const;
  TokenSample get_batch(std::span<const int64_t> indices) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Writes a file of token ids atomically. Throws `UsageError` if an id does not
/// fit the width, `SystemError` if the file cannot be written.
ACCELERATE_API void write_token_file(
    const std::filesystem::path& file,
    std::span<const int64_t> ids,
    TokenWidth width = TokenWidth::k16);

} // namespace accelerate
