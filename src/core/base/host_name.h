// SPDX-License-Identifier: Apache-2.0
// Validation of host names.
#pragma once

#include <algorithm>
#include <cctype>
#include <string_view>

namespace accelerate {

/// Letters, digits and `.-_:%` (IPv6 addresses with a scope), starting with a
/// letter, a digit, `_` or `:`, so that programs cannot mistake it for an
/// option.
inline bool is_host_name(std::string_view text) {
  constexpr size_t kLongest = 255;
  const auto fits = [](unsigned char c, std::string_view others) {
    return std::isalnum(c) != 0 ||
           others.find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kLongest &&
         fits(static_cast<unsigned char>(text[0]), "_:") &&
         std::all_of(text.begin(), text.end(), [&](unsigned char c) {
           return c < 0x80 && fits(c, ".-_:%");
         });
}

/// An IPv6 address as written in URLs, `[::1]`, without its brackets.
inline std::string_view without_brackets(std::string_view text) {
  return text.starts_with('[') && text.ends_with(']')
             ? text.substr(1, text.size() - 2)
             : text;
}

/// `name` or `user@name`.
inline bool is_ssh_target(std::string_view text) {
  const size_t at = text.find('@');
  return at == std::string_view::npos ? is_host_name(text)
                                      : is_host_name(text.substr(0, at)) &&
                                            is_host_name(text.substr(at + 1));
}

} // namespace accelerate
