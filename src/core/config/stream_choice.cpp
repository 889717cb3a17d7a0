// SPDX-License-Identifier: Apache-2.0
#include "core/config/stream_choice.h"

#include <algorithm>

#include "core/base/parse.h"

namespace accelerate {
namespace {

std::optional<int> number_up_to(const std::string& text, int most) {
  const auto number = parse_number<int>(text);
  return number && *number >= 0 && *number <= most ? number : std::nullopt;
}

} // namespace

std::optional<StreamChoice> parse_stream_choice(const std::string& text) {
  constexpr int kBoth = 3;
  constexpr int kMaxRank = 4095;
  StreamChoice choice;
  if (const auto all = number_up_to(text, kBoth)) {
    choice.all = *all;
    return choice;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t colon = text.find(':', begin);
    if (colon >= end) {
      return std::nullopt;
    }
    const auto rank = number_up_to(text.substr(begin, colon - begin), kMaxRank);
    const auto streams =
        number_up_to(text.substr(colon + 1, end - colon - 1), kBoth);
    if (!rank || !streams) {
      return std::nullopt;
    }
    choice.by_local_rank[*rank] = *streams;
    begin = end + 1;
  }
  return choice;
}

} // namespace accelerate
