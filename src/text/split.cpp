// SPDX-License-Identifier: Apache-2.0
#include "text/split.h"

namespace accelerate::text {
namespace {

bool is_letter(CharClasses c) {
  return c.has(CharClass::kLetter);
}

bool is_number(CharClasses c) {
  return c.has(CharClass::kNumber);
}

bool is_space(CharClasses c) {
  return c.has(CharClass::kSpace);
}

// Matches [^\s\p{L}\p{N}]; the classes are disjoint.
bool is_symbol(CharClasses c) {
  constexpr auto kOthers = static_cast<uint16_t>(CharClass::kSpace) |
                           static_cast<uint16_t>(CharClass::kLetter) |
                           static_cast<uint16_t>(CharClass::kNumber);
  return (c.bits & kOthers) == 0;
}

bool is_line_end(char byte) {
  return byte == '\r' || byte == '\n';
}

char lower(char byte, bool ignore_case) {
  return ignore_case && byte >= 'A' && byte <= 'Z'
             ? static_cast<char>(byte + 32)
             : byte;
}

// The end of 's|'t|'re|'ve|'m|'ll|'d at `at`, or `at` itself.
size_t end_of_contraction(std::string_view text, size_t at, bool ignore_case) {
  const std::string_view rest = text.substr(at);
  if (rest.size() < 2 || rest[0] != '\'') {
    return at;
  }
  const char first = lower(rest[1], ignore_case);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return at + 2;
  }
  // U+017F, the long s, equals s if case is ignored.
  if (ignore_case && rest.substr(1, 2) == "\xC5\xBF") {
    return at + 3;
  }
  const char second = rest.size() > 2 ? lower(rest[2], ignore_case) : '\0';
  const bool is_pair = (first == 'r' && second == 'e') ||
                       (first == 'v' && second == 'e') ||
                       (first == 'l' && second == 'l');
  return is_pair ? at + 3 : at;
}

// Matches \s+(?!\S)|\s+ : a sequence of spaces leaves its last one to the next
// word.
size_t end_of_spaces(std::string_view text, size_t at, size_t end) {
  if (end == text.size()) {
    return end;
  }
  size_t last = end;
  previous_code_point(text, last);
  return last == at ? end : last;
}

} // namespace

const std::array<CharClasses, 128>& ascii_classes() {
  static const auto table = [] {
    std::array<CharClasses, 128> made;
    for (char32_t c = 0; c < 128; ++c) {
      made[c] = classes(c);
    }
    return made;
  }();
  return table;
}

size_t end_of_gpt2_word(std::string_view text, size_t at) {
  const size_t contraction = end_of_contraction(text, at, false);
  if (contraction != at) {
    return contraction;
  }
  const ClassCursor cursor(text);
  size_t behind = text[at] == ' ' ? at + 1 : at;
  if (!cursor.at_end(behind)) {
    const CharClasses c = cursor.next(behind);
    if (is_letter(c)) {
      return cursor.end_of_run(behind, is_letter);
    }
    if (is_number(c)) {
      return cursor.end_of_run(behind, is_number);
    }
    if (is_symbol(c)) {
      return cursor.end_of_run(behind, is_symbol);
    }
  }
  return end_of_spaces(text, at, cursor.end_of_run(at, is_space));
}

size_t end_of_llama3_word(std::string_view text, size_t at, int max_digits) {
  const size_t contraction = end_of_contraction(text, at, true);
  if (contraction != at) {
    return contraction;
  }
  const ClassCursor cursor(text);
  size_t behind = at;
  const CharClasses first = cursor.next(behind);
  if (is_letter(first)) {
    return cursor.end_of_run(behind, is_letter);
  }
  if (is_number(first)) {
    for (int digits = 1; digits < max_digits; ++digits) {
      size_t next = behind;
      if (!is_number(cursor.next(next))) {
        break;
      }
      behind = next;
    }
    return behind;
  }
  if (!is_line_end(text[at])) {
    const size_t letters = cursor.end_of_run(behind, is_letter);
    if (letters != behind) {
      return letters;
    }
  }
  const size_t start = text[at] == ' ' ? at + 1 : at;
  size_t symbols = cursor.end_of_run(start, is_symbol);
  if (symbols != start) {
    while (is_line_end(cursor.byte(symbols))) {
      ++symbols;
    }
    return symbols;
  }
  const size_t spaces = cursor.end_of_run(at, is_space);
  const size_t line_end = text.substr(at, spaces - at).find_last_of("\r\n");
  return line_end != std::string_view::npos ? at + line_end + 1
                                            : end_of_spaces(text, at, spaces);
}

} // namespace accelerate::text
