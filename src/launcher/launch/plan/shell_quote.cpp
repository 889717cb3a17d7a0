// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/shell_quote.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/variables.h"

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

std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words;
  char quote = 0;
  bool is_in_word = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_space = quote == 0 && (c == ' ' || c == '\t' || c == '\n');
    if (is_space) {
      is_in_word = false;
      continue;
    }
    if (!std::exchange(is_in_word, true)) {
      words.emplace_back();
    }
    if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      words.back() += text[++i];
    } else if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0 || words.empty()) {
    throw ConfigError(str_cat(
        "[launch] '",
        text,
        "' is not a command: ",
        quote != 0 ? "a quote is not closed" : "it is empty",
        "; correct ",
        variables::kSshCommand));
  }
  return words;
}

} // namespace accelerate
