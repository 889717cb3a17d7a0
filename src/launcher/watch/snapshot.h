// SPDX-License-Identifier: Apache-2.0
// A run in the form that the page receives.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "launcher/watch/run_reader.h"

namespace accelerate {

/// A rank whose own work, which is everything but waiting for others, takes
/// longer than that of the others, so that they wait for it.
struct SlowRank {
  int rank = 0;
  /// Seconds of own work per step: this rank's, and the median of all ranks.
  double own = 0;
  double median = 0;
  /// The phase in which the rank exceeds the others most.
  std::string phase = {};
};
ACCELERATE_INTERNAL std::optional<SlowRank> find_slow_rank(
    const RunContent& content);

/// With more ranks than this, charts show the distribution instead of each
/// rank.
inline constexpr size_t kMaxRankLines = 8;

/// All that is drawn of a run at `now`, in a bounded number of points. Times
/// are seconds since the run began.
ACCELERATE_INTERNAL nlohmann::json snapshot(const RunReader& run, double now);

/// The row of a run in the table of runs. Times are seconds since 1970.
nlohmann::json summary_of(const RunContent& content);

/// "running", "finished", "failed", "interrupted", "silent" (nothing has been
/// written for a while), "empty" or "deleted".
const char* state_of(const RunReader& run, double now);

/// The steps of `ranks` between two times in seconds since 1970.
nlohmann::json ranks_json(
    const RunContent& content,
    const std::map<int, RankSeries>& ranks,
    double from,
    double to);

/// Metrics as columns of points, with times since `begin`. Single values have
/// all logged digits. Merged values have a mean with six digits.
nlohmann::json metrics_json(const Metrics& metrics, double begin);

} // namespace accelerate
