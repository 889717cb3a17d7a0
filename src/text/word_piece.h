// SPDX-License-Identifier: Apache-2.0
// WordPiece.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace accelerate::text {

/// Memory that is reused across calls.
struct WordPieceScratch {
  std::vector<PrefixHash> hashes;
  std::vector<Piece> pieces;
};

/// Splits a word into the longest token that starts it, then the longest that
/// continues it, and so on. A word that cannot be split or is too long becomes
/// one unknown token.
class WordPiece {
 public:
  struct Settings {
    int32_t unknown_id = 0;
    std::string prefix = "##";
    size_t max_chars = 100;
  };

  /// Borrows `vocabulary`.
  WordPiece(const Vocabulary& vocabulary, Settings settings);

  /// The pieces of a word. They are borrowed from `scratch`.
  std::span<const Piece> tokenize(
      std::string_view word,
      WordPieceScratch& scratch) const;

 private:
  /// Stores the hashes of the prefixes of `word.substr(begin)`, each one byte
  /// longer than the previous one.
  void hash_ends(
      std::string_view word,
      uint32_t begin,
      std::vector<PrefixHash>& hashes) const;

  const StringMap& ids_;
  Settings settings_;
  PrefixHash prefix_hash_;
};

} // namespace accelerate::text
