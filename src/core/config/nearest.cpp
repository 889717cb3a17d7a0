// SPDX-License-Identifier: Apache-2.0
#include "core/config/nearest.h"

#include <algorithm>
#include <numeric>

namespace accelerate {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last.back();
}

std::string nearest_name(
    std::string_view name,
    const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 100;
  constexpr size_t kShortestStart = 4;
  if (name.size() > kLongestName) {
    return {};
  }
  std::string best;
  int best_distance = 1 + static_cast<int>(name.size()) / 3;
  for (const std::string& candidate : candidates) {
    // A name that was cut off is nearer than any misspelling.
    const bool is_start = name.size() >= kShortestStart &&
                          candidate.size() > name.size() &&
                          candidate.starts_with(name);
    const int distance = is_start ? 1 : edit_distance(name, candidate);
    if (distance < best_distance ||
        (distance == best_distance && best.empty())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

} // namespace accelerate
