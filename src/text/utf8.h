// SPDX-License-Identifier: Apache-2.0
// UTF-8: validating, iterating, writing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::text {

/// Returns whether the text is ASCII. Throws `InvalidUtf8Error` with `where` in
/// its message.
bool check_utf8(std::string_view text, const char* where);

/// `bytes` with each invalid sequence replaced with U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

inline bool is_ascii(char byte) {
  return static_cast<unsigned char>(byte) < 0x80;
}

inline bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// Returns the code point at `at` of valid text, and moves `at` past it.
inline char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t first = byte(at);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xE0) {
    at += 2;
    return (first & 0x1F) << 6 | (byte(at - 1) & 0x3F);
  }
  if (first < 0xF0) {
    at += 3;
    return (first & 0x0F) << 12 | (byte(at - 2) & 0x3F) << 6 |
           (byte(at - 1) & 0x3F);
  }
  at += 4;
  return (first & 0x07) << 18 | (byte(at - 3) & 0x3F) << 12 |
         (byte(at - 2) & 0x3F) << 6 | (byte(at - 1) & 0x3F);
}

/// Returns the code point that ends before `end` of valid text, and moves `end`
/// to its start.
inline char32_t previous_code_point(std::string_view text, size_t& end) {
  do {
    --end;
  } while (is_continuation(text[end]));
  size_t at = end;
  return next_code_point(text, at);
}

void append_code_point(std::string& text, char32_t c);

} // namespace accelerate::text
