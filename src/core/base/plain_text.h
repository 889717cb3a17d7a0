// SPDX-License-Identifier: Apache-2.0
// Locale-independent text functions. In a program that has set the user's
// locale, as Python does, the decimal point may be a comma, and the upper case
// of `i` may not be `I`.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

namespace accelerate {

/// Converts the letters A to Z to lower case. Other characters are unchanged.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return lower;
}

/// Converts the letters a to z to upper case. Other characters are unchanged.
inline std::string upper_case(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) {
    c = 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return upper;
}

/// "1.500" for three digits.
inline std::string fixed_point(double value, int num_digits) {
  char text[400]; // The largest double has 309 digits before the point.
  const auto end = std::to_chars(
                       text,
                       text + sizeof(text),
                       value,
                       std::chars_format::fixed,
                       num_digits)
                       .ptr;
  return {text, end};
}

} // namespace accelerate
