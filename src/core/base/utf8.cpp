// SPDX-License-Identifier: Apache-2.0
#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace accelerate {

Utf8Sequence utf8_sequence_at(std::string_view text, size_t at) {
  // Table 3-7 of the Unicode standard.
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
  // Most text is ASCII, so check eight bytes at a time.
  constexpr uint64_t kHighBits = 0x8080808080808080;
  while (at + 8 <= text.size()) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    if ((eight & kHighBits) != 0) {
      break;
    }
    at += 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) {
    ++at;
  }
  return at;
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  size_t at = end_of_ascii(text);
  while (at < text.size()) {
    const Utf8Sequence found = utf8_sequence_at(text, at);
    if (!found.is_valid) {
      return at;
    }
    at = end_of_ascii(text, at + found.length);
  }
  return std::nullopt;
}

} // namespace accelerate
