// SPDX-License-Identifier: Apache-2.0
// Tokenizers that read Hugging Face files and convert text to ids and back.
//
// This is a separate library (`accelerate::text`). It needs ICU, but neither
// torch nor Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/error.h"
#include "accelerate/export.h"

namespace accelerate {

/// Text that is not UTF-8. Overlong forms, surrogates and code points above
/// U+10FFFF are rejected, as in Python's strict decoder.
class ACCELERATE_API InvalidUtf8Error : public Error {
 public:
  InvalidUtf8Error(const std::string& message, size_t position);
  /// The position of the first byte that is not part of a valid character.
  size_t position() const { return position_; }

 private:
  size_t position_;
};

/// A range in a text, counted in code points as in the Python package. It is
/// empty (0, 0) for tokens that are not in the text.
struct ACCELERATE_API TextSpan {
  int32_t begin = 0;
  int32_t end = 0;

  bool operator==(const TextSpan&) const = default;
};

/// The input of a model. All arrays have one element per token. They contain
/// 32-bit integers, so that a tensor can use them without conversion.
struct ACCELERATE_API Encoding {
  std::vector<int32_t> ids;
  /// The index of the sequence in a pair, as defined by the tokenizer's
  /// template.
  std::vector<int32_t> type_ids;
  /// 1 for tokens, 0 for padding.
  std::vector<int32_t> attention_mask;
  /// 1 for tokens that the template or padding has added, and 0 for tokens of
  /// the text (even if the text itself contains a special token).
  std::vector<int32_t> special_tokens_mask;
  /// The index of the word that contains the token, counted in its sequence. -1
  /// for tokens that are not in the text.
  std::vector<int32_t> word_ids;
  std::vector<TextSpan> offsets;
  /// The tokens that truncation removed, as encodings of the full length. Each
  /// one repeats the last `stride` tokens of the previous one. Their own
  /// `overflowing` is empty.
  std::vector<Encoding> overflowing;

  size_t size() const { return ids.size(); }
  bool operator==(const Encoding&) const = default;
};

enum class TextSide { kLeft, kRight };

/// How texts that are too long are truncated.
struct ACCELERATE_API Truncation {
  enum class Strategy { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

  Strategy strategy = Strategy::kLongestFirst;
  /// The total number of tokens, including special ones.
  int32_t max_length = 512;
  /// How many tokens each encoding in `Encoding::overflowing` repeats from the
  /// previous one.
  int32_t stride = 0;
  /// The side that is cut off.
  TextSide direction = TextSide::kRight;

  bool operator==(const Truncation&) const = default;
};

/// How the encodings of a batch are padded to one length.
struct ACCELERATE_API Padding {
  enum class Strategy { kNone, kLongest, kFixed };

  Strategy strategy = Strategy::kLongest;
  /// The length for `kFixed`. Longer encodings are not changed.
  int32_t length = 0;
  /// Round the length up to a multiple of this number. 0 means no rounding.
  int32_t multiple_of = 0;
  TextSide direction = TextSide::kRight;
  int32_t pad_id = 0;
  int32_t pad_type_id = 0;

  bool operator==(const Padding&) const = default;
};

struct ACCELERATE_API EncodeOptions {
  /// Apply the tokenizer's template ([CLS] ... [SEP]).
  bool add_special_tokens = true;
  /// If unset, the setting in the file applies, as in Python. `kNone` disables
  /// truncation.
  std::optional<Truncation> truncation = {};
  std::optional<Padding> padding = {};
  /// The number of threads of `encode_batch`, including the caller's thread. 0
  /// means one per core, or fewer for small batches.
  int num_threads = 0;
};

/// One input of a batch: one text or a pair of texts. The text is not copied
/// and must outlive the call.
struct ACCELERATE_API TextInput {
  TextInput(std::string_view text) : first(text) {}
  TextInput(const std::string& text) : first(text) {}
  TextInput(const char* text) : first(text) {}
  TextInput(std::string_view text, std::string_view pair)
      : first(text), second(pair) {}

  std::string_view first;
  std::optional<std::string_view> second;
};

/// A piece of text between normalisation and the model.
struct ACCELERATE_API TextWord {
  std::string text;
  TextSpan offsets;

  bool operator==(const TextWord&) const = default;
};

/// A tokenizer with WordPiece (BERT) or byte-level BPE (GPT-2, RoBERTa, Llama
/// 3). Ids, offsets, masks and decoded texts are the same as those of the
/// Python package `tokenizers`. Tokenizers are immutable: copies share their
/// tables, and several threads may call every method at once.
///
///     const auto tokenizer = accelerate::Tokenizer::from_folder("bert-base");
///     const auto encoding = tokenizer.encode("Hello world");
///     const std::string text = tokenizer.decode(encoding.ids);
class ACCELERATE_API Tokenizer {
 public:
  /// Reads `tokenizer.json`, or else `vocab.txt`, as for an uncased BERT unless
  /// `tokenizer_config.json` has other settings (such as `do_lower_case`). If a
  /// file is malformed or has an unsupported component (see
  /// docs/guide_files_and_text.md), throws a `ConfigError` that names the file
  /// and the position. Throws `SystemError` if a file cannot be opened.
  static Tokenizer from_folder(const std::filesystem::path& folder);
  /// Reads one file: a `vocab.txt` if the name ends in `.txt`, and otherwise a
  /// JSON file.
  static Tokenizer from_file(const std::filesystem::path& file);
  /// Takes the content of a `tokenizer.json`.
  static Tokenizer from_json(std::string_view json);

  /// Throws `InvalidUtf8Error` if the text is not UTF-8. Throws `UsageError` if
  /// the text is longer than 1 GiB or `options` cannot be satisfied (if
  /// `max_length` is below the number of special tokens, if the stride prevents
  /// progress, or if `kOnlySecond` is used without a pair).
  Encoding encode(const TextInput& input, const EncodeOptions& options = {})
      const;
  /// Encodes many inputs in parallel, then pads them together. If inputs are
  /// invalid, throws the error of the first one. The message contains its
  /// index.
  std::vector<Encoding> encode_batch(
      std::span<const TextInput> inputs,
      const EncodeOptions& options = {}) const;
  std::vector<Encoding> encode_batch(
      const std::vector<std::string>& texts,
      const EncodeOptions& options = {}) const;

  /// Returns the text of `ids`. Ids outside of the vocabulary are skipped.
  /// Bytes of incomplete characters become U+FFFD.
  std::string decode(
      std::span<const int32_t> ids,
      bool skip_special_tokens = true) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// Added tokens that match normalised text are returned in normalised form.
  std::optional<std::string> id_to_token(int32_t id) const;
  /// The number of tokens in the vocabulary, including added tokens. Each token
  /// is counted once.
  int32_t vocab_size() const;

  /// The settings in the file. If the file has none, the strategy is `kNone`.
  const Truncation& truncation() const;
  const Padding& padding() const;

  /// Runs only the normaliser, without added tokens. Useful for inspection.
  std::string normalize(std::string_view text) const;
  /// Runs only the pre-tokeniser, on unchanged `text`. Words of byte-level
  /// tokenizers are written in their printable alphabet ("Ġ" for a space).
  std::vector<TextWord> pre_tokenize(std::string_view text) const;

  class Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

} // namespace accelerate
