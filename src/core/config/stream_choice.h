// SPDX-License-Identifier: Apache-2.0
// Which output streams of which workers are shown.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// For each worker: 0 none, 1 standard output, 2 standard error, 3 both.
struct StreamChoice {
  int all = 3;
  /// Overrides `all` by local rank: workers that are not listed show nothing.
  /// If empty, `all` applies.
  std::map<int, int> by_local_rank = {};

  int of(int local_rank) const {
    if (by_local_rank.empty()) {
      return all;
    }
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? 0 : found->second;
  }
};

/// "3", or "0:3,1:2" by local rank, as in torchrun. Empty if the text is
/// neither.
ACCELERATE_INTERNAL std::optional<StreamChoice> parse_stream_choice(
    const std::string& text);

} // namespace accelerate
