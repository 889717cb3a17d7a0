// SPDX-License-Identifier: Apache-2.0
// Parses values of flags, files and variables.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate {

/// Parses yes, true, on, 1 and their opposites, in any case. Empty for other
/// strings.
inline std::optional<bool> parse_bool(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  for (const char* yes : {"true", "yes", "on", "1", "y"}) {
    if (lower == yes) {
      return true;
    }
  }
  for (const char* no : {"false", "no", "off", "0", "n"}) {
    if (lower == no) {
      return false;
    }
  }
  return std::nullopt;
}

/// Parses a decimal number that spans the whole text and fits into the type.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return number;
}

} // namespace accelerate
