// SPDX-License-Identifier: Apache-2.0
// Files of token ids for language models. The files contain only ids, as
// little-endian integers of 16 or 32 bits, as written by nanoGPT and others.
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
  /// If false, `labels` equal `input_ids`, for models that shift labels when
  /// they compute the loss (as Hugging Face's and our models do). If true,
  /// `labels[i]` is the token after `input_ids[i]`.
  bool shift_labels = false;
};

/// A sample, whose tensors have the shape [sequence_length], or a batch, whose
/// tensors have the shape [n, sequence_length]. The dtype is kLong. The two
/// tensors never share memory.
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
/// long text. A sample may start in one file and end in the next. Tokens at the
/// end of the last file that do not fill a sample are dropped. Files are
/// mapped, not read: only accessed pages are in memory, and all processes share
/// these pages. Files must not be truncated during use. Copies share the
/// mapping, and any number of threads may read.
///
///     accelerate::TokenFileDataset train(
///         {"train_000.bin", "train_001.bin"}, {.sequence_length = 1024});
class ACCELERATE_API TokenFileDataset {
 public:
  /// Throws `SystemError` if a file cannot be read, `DataError` if a file ends
  /// inside a token or all files together are shorter than one sample, and
  /// `UsageError` if there are no files or `sequence_length` is below 1.
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
/// fit into the given width, and `SystemError` if the file cannot be written.
ACCELERATE_API void write_token_file(
    const std::filesystem::path& file,
    std::span<const int64_t> ids,
    TokenWidth width = TokenWidth::k16);

} // namespace accelerate
