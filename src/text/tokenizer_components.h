// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer, and the readers of its files.
#pragma once

#include <filesystem>
#include <string_view>
#include <variant>

#include "accelerate/text.h"
#include "text/added_tokens.h"
#include "text/byte_bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/vocabulary.h"
#include "text/word_piece.h"

namespace accelerate::text {

/// How text is split into words.
struct PreTokenizer {
  enum class Pattern { kBert, kGpt2, kLlama3, kNone };
  Pattern pattern = Pattern::kBert;
  /// Maximum number of digits in one word, for `kLlama3`.
  int max_digits = 3;
  /// Byte level: adds a space before a text (or, if the pattern is a separate
  /// part, before a word) that does not start with one.
  bool add_prefix_space = false;
  bool is_prefix_per_word = false;
};

struct WordPieceModel {
  WordPiece::Settings settings;
};

struct ByteBpeModel {
  ByteBpe::Settings settings;
  MergeMap merges;
};

/// The content of a tokenizer's files. A plain value, which `Tokenizer::Impl`
/// runs.
struct TokenizerComponents {
  Vocabulary vocabulary;
  std::variant<WordPieceModel, ByteBpeModel> model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor = make_plain_post_processor();
  Decoder decoder;
  AddedTokens added_tokens;
  Truncation truncation = {.strategy = Truncation::Strategy::kNone};
  Padding padding = {.strategy = Padding::Strategy::kNone};
};

/// Reads a tokenizer.json. `name` appears in messages. Throws a `ConfigError`
/// that names the position of what is malformed or not supported.
TokenizerComponents read_tokenizer_json(
    std::string_view json,
    const std::string& name);

/// Settings of `tokenizer_config.json` that change how `vocab.txt` is used.
struct BertSettings {
  bool lowercase = true;
  /// Defaults to the value of `lowercase`.
  std::optional<bool> strip_accents = {};
  bool space_chinese = true;
};
BertSettings read_bert_settings(std::string_view json, const std::string& name);

/// An uncased BERT from a vocabulary with one token per line.
TokenizerComponents read_vocab_txt(
    std::string_view lines,
    const BertSettings& settings,
    const std::string& name);

std::vector<NormalizerStep> bert_steps(
    const BertSettings& settings,
    bool clean);

/// Registers added tokens as in the Rust library: a token of the vocabulary
/// keeps its id, others are numbered from the vocabulary's size on.
void add_tokens(
    TokenizerComponents& components,
    std::vector<AddedToken> tokens,
    const std::string& name);

/// Fills the `blanks` of the post-processor if it trims. Call it after
/// `add_tokens`.
void count_blanks(TokenizerComponents& components);

/// Spaces (also in their printable form) at the ends of a token.
Blanks blanks_of(std::string_view token);

} // namespace accelerate::text
