// SPDX-License-Identifier: Apache-2.0
#include "core/base/printable.h"

#include <cstdint>

namespace accelerate {
namespace {

struct CodePoint {
  uint32_t value = 0;
  /// The size in bytes; 0 if the text is not valid UTF-8 at this position.
  size_t size = 0;
};

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) {
    return {};
  }
  uint32_t value = lead & (0x7FU >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return {};
    }
    value = value << 6 | (byte(i) & 0x3FU);
  }
  const bool is_surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kLeast[size] || value > 0x10FFFF || is_surrogate) {
    return {};
  }
  return {value, size};
}

bool is_harmless(uint32_t c) {
  const bool is_control = (c < 0x20 && c != '\t') || (c >= 0x7F && c < 0xA0);
  const bool is_separator = c == 0x2028 || c == 0x2029;
  const bool is_direction = c == 0x61C || c == 0x200E || c == 0x200F ||
                            (c >= 0x202A && c <= 0x202E) ||
                            (c >= 0x2066 && c <= 0x2069);
  return !is_control && !is_separator && !is_direction;
}

} // namespace

std::string printable(std::string_view text, LineEnds line_ends) {
  std::string out;
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    const size_t size = next.size == 0 ? 1 : next.size;
    const bool is_kept_end = next.value == '\n' && line_ends == LineEnds::kKept;
    if (next.size != 0 && (is_harmless(next.value) || is_kept_end)) {
      out += text.substr(0, size);
    } else {
      for (const char c : text.substr(0, size)) {
        const auto byte = static_cast<unsigned char>(c);
        out += "\\x";
        out += "0123456789abcdef"[byte >> 4];
        out += "0123456789abcdef"[byte & 15];
      }
    }
    text.remove_prefix(size);
  }
  return out;
}

} // namespace accelerate
