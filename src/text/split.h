// SPDX-License-Identifier: Apache-2.0
// The second step: splitting text into words.
#pragma once

#include <array>
#include <string_view>

#include "text/unicode.h"
#include "text/utf8.h"

namespace accelerate::text {

/// Classes of the ASCII characters in a compact table.
const std::array<CharClasses, 128>& ascii_classes();

/// Iterates over the code points of valid text with their classes.
class ClassCursor {
 public:
  explicit ClassCursor(std::string_view text) : text_(text) {}

  bool at_end(size_t at) const { return at >= text_.size(); }
  char byte(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  /// Returns the classes of the code point at `at`, and moves `at` past it.
  /// Empty at the end.
  CharClasses next(size_t& at) const {
    if (at_end(at)) {
      return {};
    }
    if (is_ascii(text_[at])) {
      return ascii_[static_cast<size_t>(text_[at++])];
    }
    return classes(next_code_point(text_, at));
  }

  /// The end of the sequence of code points from `at` that `accept` accepts.
  template <class Accept>
  size_t end_of_run(size_t at, Accept accept) const {
    while (!at_end(at)) {
      size_t behind = at;
      if (!accept(next(behind))) {
        break;
      }
      at = behind;
    }
    return at;
  }

 private:
  std::string_view text_;
  const std::array<CharClasses, 128>& ascii_ = ascii_classes();
};

/// BERT: words are separated by spaces, and punctuation characters are words.
/// Calls `word(begin, end)` for each.
template <class Word>
void split_bert(std::string_view text, Word&& word) {
  const ClassCursor cursor(text);
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const CharClasses c = cursor.next(at);
    if (!c.has_any(CharClass::kWhitespace, CharClass::kPunctuation)) {
      continue;
    }
    if (start < here) {
      word(start, here);
    }
    if (!c.has(CharClass::kWhitespace)) {
      word(here, at);
    }
    start = at;
  }
  if (start < text.size()) {
    word(start, text.size());
  }
}

/// The end of the word of GPT-2's pattern that starts at `at`:
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t end_of_gpt2_word(std::string_view text, size_t at);

/// The same for Llama 3's pattern, whose numbers have up to `max_digits`
/// digits:
/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
size_t end_of_llama3_word(std::string_view text, size_t at, int max_digits);

} // namespace accelerate::text
