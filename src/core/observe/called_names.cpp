// SPDX-License-Identifier: Apache-2.0
#include "core/observe/called_names.h"

#include <algorithm>
#include <cctype>

#include "core/base/str.h"

namespace accelerate {

std::string name_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += str_cat(i > 0 ? ", " : "", ranks[i]);
    if (last > i) {
      text += str_cat(last > i + 1 ? "-" : ", ", ranks[last]);
    }
    i = last + 1;
  }
  return text;
}

std::string as_called(const std::string& operation) {
  const auto past_name = std::find_if_not(
      operation.begin(), operation.end(), [](unsigned char letter) {
        return std::isalpha(letter) != 0 || letter == '_';
      });
  const std::string name(operation.begin(), past_name);
  const std::string rest(past_name, operation.end());
  for (const char* follows : {" from rank ", " to rank ", " with "}) {
    if (rest.starts_with(follows)) {
      return str_cat(name, "()", rest);
    }
  }
  if (name.empty() || rest.empty()) {
    return name.empty() ? operation : name + "()";
  }
  // " Float[4,2] in a group of 2"
  const size_t bracket = rest.find('[');
  const size_t close = rest.find(']');
  if (rest[0] != ' ' || rest.rfind(' ', bracket) != 0 ||
      close == std::string::npos) {
    return operation;
  }
  return str_cat(name, '(', rest.substr(1, close), ')', rest.substr(close + 1));
}

} // namespace accelerate
