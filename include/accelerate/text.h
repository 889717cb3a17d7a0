// SPDX-License-Identifier: Apache-2.0
// Tokenizers read from Hugging Face files: text to ids and back.
//
// A library of its own (`accelerate::text`, on ICU): no torch, no Python.
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
/// U+10FFFF are refused as Python's strict decoder refuses them.
class ACCELERATE_API InvalidUtf8Error : public Error {
 public:
  InvalidUtf8Error(const std::string& message, size_t position);
  /// The first byte that belongs to no valid character.
  size_t position() const { return position_; }

 private:
  size_t position_;
};

/// A part of a text, counted in code points as the Python package counts.
/// Empty (0, 0) for tokens that are not in the text.
struct ACCELERATE_API TextSpan {
  int32_t begin = 0;
  int32_t end = 0;

  bool operator==(const TextSpan&) const = default;
};

/// What a model reads: arrays of one length, one element per token. 32-bit
/// integers, so that a tensor can be made of them as they lie.
struct ACCELERATE_API Encoding {
  std::vector<int32_t> ids;
  /// Which sequence of a pair, as the template of the tokenizer has it.
  std::vector<int32_t> type_ids;
  /// 1 for tokens, 0 for padding.
  std::vector<int32_t> attention_mask;
  /// 1 for what the template or padding put in, 0 for tokens of the text (also
  /// where the text itself spells a special token).
  std::vector<int32_t> special_tokens_mask;
  /// Which word of its sequence the token is a part of; -1 for tokens that are
  /// not in the text.
  std::vector<int32_t> word_ids;
  std::vector<TextSpan> offsets;
  /// What truncation cut off, in pieces of full length that share `stride`
  /// tokens with their predecessor; themselves without `overflowing`.
  std::vector<Encoding> overflowing;

  size_t size() const { return ids.size(); }
  bool operator==(const Encoding&) const = default;
};

enum class TextSide { kLeft, kRight };

/// How a text that is too long is cut.
struct ACCELERATE_API Truncation {
  enum class Strategy { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

  Strategy strategy = Strategy::kLongestFirst;
  /// Tokens in all, special tokens included.
  int32_t max_length = 512;
  /// Tokens that a piece in `Encoding::overflowing` repeats of the one before.
  int32_t stride = 0;
  /// The side that is cut off.
  TextSide direction = TextSide::kRight;

  bool operator==(const Truncation&) const = default;
};

/// How the encodings of a batch are brought to one length.
struct ACCELERATE_API Padding {
  enum class Strategy { kNone, kLongest, kFixed };

  Strategy strategy = Strategy::kLongest;
  /// The length for `kFixed`; a longer encoding stays as it is.
  int32_t length = 0;
  /// Rounds the length up to a multiple of this; 0 leaves it.
  int32_t multiple_of = 0;
  TextSide direction = TextSide::kRight;
  int32_t pad_id = 0;
  int32_t pad_type_id = 0;

  bool operator==(const Padding&) const = default;
};

struct ACCELERATE_API EncodeOptions {
  /// Apply the tokenizer's template ([CLS] ... [SEP]).
  bool add_special_tokens = true;
  /// Unset: what the file says, as in Python. `kNone` turns it off.
  std::optional<Truncation> truncation = {};
  std::optional<Padding> padding = {};
  /// Threads of `encode_batch`, the caller's included; 0: one per core, fewer
  /// for small batches.
  int num_threads = 0;
};

/// One input of a batch: a text or a pair. Borrowed: the text must outlive the
/// call.
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

/// WordPiece (BERT) and byte-level BPE (GPT-2, RoBERTa, Llama 3) with the ids,
/// offsets, masks and decoded texts of the Python package `tokenizers`.
/// A tokenizer never changes: copies share its tables, and every method may be
/// called from many threads at once.
///
///     const auto tokenizer = accelerate::Tokenizer::from_folder("bert-base");
///     const auto encoding = tokenizer.encode("Hello world");
///     const std::string text = tokenizer.decode(encoding.ids);
class ACCELERATE_API Tokenizer {
 public:
  /// Reads `tokenizer.json`, or else `vocab.txt` as an uncased BERT (settings
  /// in `tokenizer_config.json` such as `do_lower_case` are heeded). Throws
  /// `ConfigError` naming file and place where a file is malformed or has a
  /// part that is not read (docs/guide_files_and_text.md has the list),
  /// `SystemError` where it cannot be opened.
  static Tokenizer from_folder(const std::filesystem::path& folder);
  /// One file: a `vocab.txt` where the name ends in `.txt`, else JSON.
  static Tokenizer from_file(const std::filesystem::path& file);
  /// The content of a `tokenizer.json`.
  static Tokenizer from_json(std::string_view json);

  /// Throws `InvalidUtf8Error` where the text is not UTF-8, `UsageError` where
  /// the text is longer than a gibibyte or `options` cannot be met (a
  /// `max_length` below the number of special tokens, a stride that leaves no
  /// progress, `kOnlySecond` without a pair).
  Encoding encode(const TextInput& input, const EncodeOptions& options = {})
      const;
  /// The same for many inputs, in parallel, then padded together. Where several
  /// inputs are refused, the error is that of the first and names its index.
  std::vector<Encoding> encode_batch(
      std::span<const TextInput> inputs,
      const EncodeOptions& options = {}) const;
  std::vector<Encoding> encode_batch(
      const std::vector<std::string>& texts,
      const EncodeOptions& options = {}) const;

  /// The text of `ids`; ids that the vocabulary does not have are passed over.
  /// Bytes of a character that was cut become U+FFFD.
  std::string decode(
      std::span<const int32_t> ids,
      bool skip_special_tokens = true) const;

  std::optional<int32_t> token_to_id(std::string_view token) const;
  /// Added tokens that are looked for in normalised text come back normalised.
  std::optional<std::string> id_to_token(int32_t id) const;
  /// Tokens of the model and added tokens, each counted once.
  int32_t vocab_size() const;

  /// What the file says, strategy `kNone` where it says nothing.
  const Truncation& truncation() const;
  const Padding& padding() const;

  /// The first step alone, without added tokens: for looking at it.
  std::string normalize(std::string_view text) const;
  /// The second step alone, on `text` as it is. Words of byte-level tokenizers
  /// are in their printable alphabet ("Ġ" for a space).
  std::vector<TextWord> pre_tokenize(std::string_view text) const;

  class Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

} // namespace accelerate
