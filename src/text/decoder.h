// SPDX-License-Identifier: Apache-2.0
// Tokens back to text.
#pragma once

#include <string>
#include <vector>

namespace accelerate::text {

struct Decoder {
  enum class Kind {
    kJoin, // spaces between tokens
    kWordPiece,
    kByteLevel,
  };
  Kind kind = Kind::kJoin;
  /// What WordPiece writes before tokens that continue a word.
  std::string prefix = "##";
  /// Takes out the spaces that WordPiece leaves before punctuation.
  bool cleanup = true;

  std::string decode(const std::vector<std::string>& tokens) const;
};

} // namespace accelerate::text
