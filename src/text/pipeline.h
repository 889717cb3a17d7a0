// SPDX-License-Identifier: Apache-2.0
// From a text to its tokens: added tokens, normalisation, words, model.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/post_processor.h"
#include "text/tokenizer_components.h"

namespace accelerate::text {

/// Memory that is reused across calls. Its cache of words speeds up later
/// texts.
struct Scratch {
  std::vector<int32_t> sources;
  NormalizerScratch normalizer;
  SegmentBuffer prefixed;
  BpeScratch bpe;
  WordPieceScratch word_piece;
  TokenSequence first;
  TokenSequence second;
};

/// The steps before post-processing. Immutable. Every thread uses its own
/// `Scratch`.
class Pipeline {
 public:
  explicit Pipeline(TokenizerComponents components);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  const TokenizerComponents& components() const { return components_; }

  /// Splits `text` into tokens. Overwrites `result`. Throws `InvalidUtf8Error`.
  void tokenize(std::string_view text, Scratch& scratch, TokenSequence& result)
      const;
  std::string normalize(std::string_view text, Scratch& scratch) const;
  std::vector<TextWord> pre_tokenize(std::string_view text, Scratch& scratch)
      const;

 private:
  /// Calls `word(segment, begin, end)` for each word of `segment`.
  template <class Word>
  void split(const Segment& segment, Scratch& scratch, Word&& word) const;
  /// Splits `segment` at added tokens with this value of `normalized`. Calls
  /// `added(token, section)` for each of them and `plain(section)` for the
  /// rest.
  template <class Added, class Plain>
  void extract(
      const Segment& segment,
      bool normalized,
      Added&& added,
      Plain&& plain) const;
  void tokenize_words(
      const Segment& segment,
      Scratch& scratch,
      int32_t& word_id,
      TokenSequence& result) const;

  TokenizerComponents components_;
  std::optional<WordPiece> word_piece_;
  std::optional<ByteBpe> byte_bpe_;
};

} // namespace accelerate::text
