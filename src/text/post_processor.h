// SPDX-License-Identifier: Apache-2.0
// The fourth step: truncation, special tokens, padding.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/text.h"

namespace accelerate::text {

/// A token of a text before special tokens are added.
struct Token {
  int32_t id;
  TextSpan offsets;
  int32_t word;
};

/// Spaces at the two ends of a token, in code points.
struct Blanks {
  int32_t leading = 0;
  int32_t trailing = 0;
};

/// The tokens of one text.
struct TokenSequence {
  std::vector<Token> tokens;
  /// Blanks of added tokens, by the index of the token, in ascending order.
  /// Blanks of the model's tokens depend only on the id
  /// (`PostProcessor::blanks`).
  std::vector<std::pair<size_t, Blanks>> added_blanks;

  void clear() {
    tokens.clear();
    added_blanks.clear();
  }
};

/// A slot of a template: special tokens, or one of the texts.
struct TemplateSlot {
  enum class Kind { kSpecial, kFirst, kSecond };
  Kind kind = Kind::kSpecial;
  std::vector<int32_t> ids;
  int32_t type_id = 0;
  /// The type of tokens that truncation cut off. In the Rust library, this type
  /// does not follow the template.
  int32_t overflow_type_id = 0;
};

/// The templates and settings that arrange texts with special tokens.
struct PostProcessor {
  std::vector<TemplateSlot> single;
  std::vector<TemplateSlot> pair;
  /// The templates that are used without special tokens.
  std::vector<TemplateSlot> plain_single;
  std::vector<TemplateSlot> plain_pair;
  /// One entry per part that removes spaces from offsets: whether the first
  /// word got a space that is not in the text.
  std::vector<bool> trims;
  /// Blanks of the model's tokens, by id. Filled only if `trims` is not empty.
  std::vector<Blanks> blanks;

  const std::vector<TemplateSlot>& slots(bool is_pair, bool add_special) const {
    return is_pair ? (add_special ? pair : plain_pair)
                   : (add_special ? single : plain_single);
  }
};

/// The post-processor without special tokens: [first] and [first, second] with
/// types 0 and 1.
PostProcessor make_plain_post_processor();

/// Truncates, arranges and marks tokens. `second` is null without a pair.
/// Throws `UsageError` if `truncation` cannot be satisfied.
Encoding post_process(
    const PostProcessor& processor,
    const TokenSequence& first,
    const TokenSequence* second,
    const Truncation& truncation,
    bool add_special_tokens);

/// Pads encodings to one length if `padding` requests it.
void pad(std::span<Encoding> encodings, const Padding& padding);

} // namespace accelerate::text
