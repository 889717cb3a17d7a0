// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/shell_quote.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace accelerate {

std::string shell_quoted(const std::string& text) {
  constexpr std::string_view kHarmless = "-_./:=,+@%";
  const bool is_plain =
      !text.empty() &&
      std::all_of(text.begin(), text.end(), [&](unsigned char c) {
        return std::isalnum(c) != 0 ||
               kHarmless.find(static_cast<char>(c)) != std::string_view::npos;
      });
  if (is_plain) {
    return text;
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

} // namespace accelerate
