// SPDX-License-Identifier: Apache-2.0
// A run as the page gets it.
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
/// longer than that of the others: they wait for it.
struct SlowRank {
  int rank = 0;
  /// Seconds of a step.
  double own = 0;
  double median = 0;
  /// The part that it takes longest for, compared with the others.
  std::string phase = {};
};
ACCELERATE_INTERNAL std::optional<SlowRank> find_slow_rank(
    const RunContent& content);

/// With more ranks than this, charts show how they spread.
inline constexpr size_t kMaxRankLines = 8;

/// All that is drawn of a run at `now`, in a bounded number of points; times
/// are seconds since its beginning.
ACCELERATE_INTERNAL nlohmann::json snapshot(const RunReader& run, double now);

/// What the table of runs shows of one; times are seconds since 1970.
nlohmann::json summary_of(const RunContent& content);

/// "running", "finished", "failed", "interrupted", "silent" (nothing has been
/// written for a while) or "empty".
const char* state_of(const RunContent& content, double now);

/// The steps of `ranks` between two times in seconds since 1970.
nlohmann::json ranks_json(
    const RunContent& content,
    const std::map<int, RankSeries>& ranks,
    double from,
    double to);

/// Columns of points, times since `begin`. Single values are as they were
/// logged; merged ones have a mean and six digits.
nlohmann::json metrics_json(const Metrics& metrics, double begin);

} // namespace accelerate
