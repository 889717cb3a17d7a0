// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <cstring>

#include "accelerate/text.h"
#include "base/str.h"

namespace accelerate {

InvalidUtf8Error::InvalidUtf8Error(const std::string& message, size_t position)
    : Error(message), position_(position) {}

namespace text {
namespace {

// How many bytes at `at` are a character (`valid`), or the longest start of
// one (at least 1): table 3-7 of the Unicode standard.
struct Sequence {
  size_t length;
  bool valid;
};

Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(at);
  if (first < 0x80) {
    return {1, true};
  }
  const size_t length = first < 0xC2   ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0) {
    return {1, false};
  }
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) {
    return {1, false};
  }
  for (size_t i = 2; i < length; ++i) {
    if (byte(at + i) < 0x80 || byte(at + i) > 0xBF) {
      return {i, false};
    }
  }
  return {length, true};
}

size_t end_of_ascii(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (at + 8 <= text.size()) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    if ((eight & kHighBits) != 0) {
      break;
    }
    at += 8;
  }
  while (at < text.size() && is_ascii(text[at])) {
    ++at;
  }
  return at;
}

} // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text, bool* is_ascii) {
  size_t at = end_of_ascii(text, 0);
  *is_ascii = at == text.size();
  while (at < text.size()) {
    const Sequence found = sequence_at(text, at);
    if (!found.valid) {
      return at;
    }
    at = end_of_ascii(text, at + found.length);
  }
  return std::nullopt;
}

bool check_utf8(std::string_view text, const char* where) {
  bool is_ascii = false;
  if (const auto at = find_invalid_utf8(text, &is_ascii)) {
    const auto byte = static_cast<unsigned char>(text[*at]);
    const char* digits = "0123456789ABCDEF";
    throw InvalidUtf8Error(
        str_cat(
            "[",
            where,
            "] byte 0x",
            digits[byte >> 4],
            digits[byte & 15],
            " at position ",
            *at,
            " is not UTF-8; convert the text or clean it first"),
        *at);
  }
  return is_ascii;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Sequence found = sequence_at(bytes, at);
    if (found.valid) {
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
