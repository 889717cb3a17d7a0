// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include "accelerate/text.h"
#include "core/base/str.h"
#include "core/base/utf8.h"

namespace accelerate {

InvalidUtf8Error::InvalidUtf8Error(const std::string& message, size_t position)
    : Error(message), position_(position) {}

namespace text {

bool check_utf8(std::string_view text, const char* where) {
  if (end_of_ascii(text) == text.size()) {
    return true;
  }
  if (const auto at = find_invalid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(text[*at]);
    const char* digits = "0123456789ABCDEF";
    throw InvalidUtf8Error(
        str_cat(
            "[",
            where,
            "] Byte 0x",
            digits[byte >> 4],
            digits[byte & 15],
            " at position ",
            *at,
            " is not valid UTF-8. Convert or clean the text first"),
        *at);
  }
  return false;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Sequence found = utf8_sequence_at(bytes, at);
    if (found.is_valid) {
      text.append(bytes, at, found.length);
    } else {
      text += "\xEF\xBF\xBD";
    }
    at += found.length;
  }
  return text;
}

void append_code_point(std::string& text, char32_t c) {
  const auto add = [&](char32_t byte) {
    text += static_cast<char>(static_cast<unsigned char>(byte));
  };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6);
    add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

} // namespace text
} // namespace accelerate
