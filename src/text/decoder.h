// SPDX-License-Identifier: Apache-2.0
// Converts tokens back to text.
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
  /// WordPiece's prefix for tokens that continue a word.
  std::string prefix = "##";
  /// Removes the spaces that WordPiece leaves before punctuation.
  bool cleanup = true;

  std::string decode(const std::vector<std::string>& tokens) const;
};

} // namespace accelerate::text
