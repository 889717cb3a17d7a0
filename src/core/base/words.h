// SPDX-License-Identifier: Apache-2.0
// Lists of words, and trimming.
#pragma once

#include <string>
#include <string_view>

namespace accelerate {

/// "a,b,c" for the separator ",".
template <class Words>
std::string join(const Words& words, std::string_view separator) {
  std::string text;
  bool is_first = true;
  for (const std::string_view word : words) {
    text += is_first ? std::string_view() : separator;
    text += word;
    is_first = false;
  }
  return text;
}

/// "a, b or c".
template <class Words>
std::string either(const Words& words) {
  std::string text;
  size_t left = words.size();
  for (const std::string_view word : words) {
    text += word;
    --left;
    text += left > 1 ? ", " : left == 1 ? " or " : "";
  }
  return text;
}

/// `text` without leading and trailing `spaces`.
inline std::string_view trimmed(
    std::string_view text,
    const char* spaces = " \t\n") {
  const size_t begin = text.find_first_not_of(spaces);
  return begin == text.npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

} // namespace accelerate
