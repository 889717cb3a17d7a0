// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/snapshot.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace accelerate {
namespace {

using WatchJson = nlohmann::json;

constexpr size_t kMaxCells = 240;
/// Which steps are recent: those of the last tenth of a run, but of at least 30
/// seconds.
constexpr double kRecentShare = 0.1;
constexpr double kRecentSeconds = 30;
constexpr double kSlowRatio = 1.2;
/// A run is silent after this time without a line, or after this share of its
/// duration if that is longer.
constexpr double kSilenceSeconds = 60;
constexpr double kSilenceShare = 0.01;

/// The steps of one rank in one interval of time.
struct Cell {
  double steps = 0;
  double seconds = 0;
  std::array<double, kPhaseNames.size()> phases = {};
  double memory = 0;
  double device_memory = 0;
  double cpu = 0;
  double device_busy = 0;

  void add(const RankPoint& point, double share) {
    steps += share * point.steps;
    seconds += share * (point.end - point.begin);
    for (size_t i = 0; i < phases.size(); ++i) {
      phases[i] += share * point.phases[i];
    }
    memory = std::max(memory, point.memory);
    device_memory = std::max(device_memory, point.device_memory);
    cpu += share * point.cpu;
    device_busy += share * point.device_busy;
  }
  double total() const {
    return std::accumulate(phases.begin(), phases.end(), 0.0);
  }
  bool has_steps() const { return steps > 1e-6; }
  /// Seconds per step without waiting for others.
  double own() const { return (total() - phases[kCommunicationPhase]) / steps; }
};

struct Quantity {
  const char* name;
  std::optional<double> (*of)(const Cell& cell);
};

std::optional<double> if_positive(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

constexpr std::array<Quantity, 9> kQuantities = {{
    {"step_time",
     [](const Cell& cell) -> std::optional<double> {
       return cell.has_steps() ? std::optional(cell.total() / cell.steps)
                               : std::nullopt;
     }},
    {"throughput",
     [](const Cell& cell) -> std::optional<double> {
       return cell.seconds > 0 ? std::optional(cell.steps / cell.seconds)
                               : std::nullopt;
     }},
    {"own",
     [](const Cell& cell) -> std::optional<double> {
       return cell.has_steps() ? std::optional(cell.own()) : std::nullopt;
     }},
    {"data_wait",
     [](const Cell& cell) -> std::optional<double> {
       return cell.has_steps() ? std::optional(cell.phases[0] / cell.steps)
                               : std::nullopt;
     }},
    {"busy",
     [](const Cell& cell) -> std::optional<double> {
       // A rank does not compute while it waits for data or for others.
       return cell.total() > 0 ? std::optional(
                                     1 - (cell.phases[0] +
                                          cell.phases[kCommunicationPhase]) /
                                             cell.total())
                               : std::nullopt;
     }},
    {"cpu",
     [](const Cell& cell) -> std::optional<double> {
       return cell.seconds > 0 ? std::optional(cell.cpu / cell.seconds)
                               : std::nullopt;
     }},
    {"memory", [](const Cell& cell) { return if_positive(cell.memory); }},
    {"device_memory",
     [](const Cell& cell) { return if_positive(cell.device_memory); }},
    {"device_busy",
     [](const Cell& cell) {
       return if_positive(
           cell.seconds > 0 ? std::min(1.0, cell.device_busy / cell.seconds)
                            : 0);
     }},
}};

/// The median; the lower of two middle values, so the faster of two ranks.
double median_of(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool is_of_now(const RunContent& content, int rank) {
  return content.num_processes == 0 || rank < content.num_processes;
}

Cell recent_cell(const RunContent& content, const RankSeries& series) {
  const double window =
      std::max(kRecentSeconds, kRecentShare * (content.end - content.begin));
  Cell cell;
  for (const auto& point : series.points.points()) {
    if (point.end >= content.end - window) {
      cell.add(point, 1);
    }
  }
  return cell;
}

/// Rounds to six significant digits.
WatchJson rounded(double value) {
  if (!std::isfinite(value) || value == 0) {
    return value == 0 ? WatchJson(0) : WatchJson();
  }
  const double scale =
      std::pow(10, 5 - std::floor(std::log10(std::abs(value))));
  const double near = std::round(value * scale) / scale;
  return std::isfinite(near) ? WatchJson(near) : WatchJson(value);
}

WatchJson rounded(const std::optional<double>& value) {
  return value ? rounded(*value) : WatchJson();
}

WatchJson logged_json(double value) {
  const char* name = name_of_not_finite(value);
  return name != nullptr ? WatchJson(name) : WatchJson(value);
}

WatchJson last_json(const Metric& metric) {
  return metric.last ? logged_json(metric.last->value) : WatchJson();
}

/// A grid of intervals whose width stays the same while a run grows, so that
/// lines do not jump.
struct Grid {
  double begin = 0;
  double width = 1;
  size_t size = 0;

  /// A grid from `from` to `to`, aligned to `origin`.
  Grid(double origin, double from, double to) {
    while ((to - from) / width >= static_cast<double>(kMaxCells)) {
      width *= 2;
    }
    begin = origin + std::floor((from - origin) / width) * width;
    size = static_cast<size_t>((to - begin) / width) + 1;
  }

  std::vector<Cell> cells_of(const RankSeries& series) const {
    std::vector<Cell> cells(size);
    for (const auto& point : series.points.points()) {
      add(point, cells);
    }
    return cells;
  }

 private:
  void add(const RankPoint& point, std::vector<Cell>& cells) const {
    const double first = (point.begin - begin) / width;
    const double length = (point.end - point.begin) / width;
    if (first + length < 0 || first >= static_cast<double>(size)) {
      return;
    }
    const double from = std::max(first, 0.0);
    const double to = std::min(first + length, static_cast<double>(size));
    for (auto i = static_cast<size_t>(from);
         i < size && static_cast<double>(i) <= to;
         ++i) {
      const auto cell = static_cast<double>(i);
      const double shared = std::min(to, cell + 1) - std::max(from, cell);
      if (length <= 0) {
        cells[i].add(point, 1);
        return;
      }
      if (shared > 0) {
        cells[i].add(point, shared / length);
      }
    }
  }
};

WatchJson quantity_of_ranks(
    const Quantity& quantity,
    const std::map<int, std::vector<Cell>>& ranks,
    size_t num_cells,
    const std::optional<SlowRank>& slow) {
  const auto line_of = [&](int rank) -> WatchJson {
    WatchJson values = WatchJson::array();
    for (const auto& cell : ranks.at(rank)) {
      values.push_back(rounded(quantity.of(cell)));
    }
    return {{"rank", rank}, {"values", std::move(values)}};
  };
  if (ranks.size() <= kMaxRankLines) {
    WatchJson lines = WatchJson::array();
    for (const auto& [rank, cells] : ranks) {
      lines.push_back(line_of(rank));
    }
    return {{"lines", std::move(lines)}};
  }
  WatchJson median = WatchJson::array();
  WatchJson low = WatchJson::array();
  WatchJson high = WatchJson::array();
  for (size_t i = 0; i < num_cells; ++i) {
    std::vector<double> values;
    for (const auto& [rank, cells] : ranks) {
      if (const auto value = quantity.of(cells[i])) {
        values.push_back(*value);
      }
    }
    const bool is_empty = values.empty();
    const auto [least, most] =
        std::minmax_element(values.begin(), values.end());
    low.push_back(is_empty ? WatchJson() : rounded(*least));
    high.push_back(is_empty ? WatchJson() : rounded(*most));
    median.push_back(is_empty ? WatchJson() : rounded(median_of(values)));
  }
  return {
      {"median", std::move(median)},
      {"low", std::move(low)},
      {"high", std::move(high)},
      {"slow", slow ? line_of(slow->rank) : WatchJson()}};
}

WatchJson ranks_of(
    const std::map<int, RankSeries>& all,
    const Grid& grid,
    double origin,
    const std::optional<SlowRank>& slow) {
  std::map<int, std::vector<Cell>> ranks;
  for (const auto& [rank, series] : all) {
    ranks.emplace(rank, grid.cells_of(series));
  }
  WatchJson time = WatchJson::array();
  for (size_t i = 0; i < grid.size; ++i) {
    time.push_back(
        grid.begin - origin + (static_cast<double>(i) + 0.5) * grid.width);
  }
  WatchJson found = {{"time", std::move(time)}, {"width", grid.width}};
  for (const auto& quantity : kQuantities) {
    found[quantity.name] = quantity_of_ranks(quantity, ranks, grid.size, slow);
  }
  // The phases per step, on average over all ranks.
  WatchJson phases = WatchJson::object();
  for (size_t phase = 0; phase < kPhaseNames.size(); ++phase) {
    WatchJson values = WatchJson::array();
    for (size_t i = 0; i < grid.size; ++i) {
      double sum = 0;
      double steps = 0;
      for (const auto& [rank, cells] : ranks) {
        sum += cells[i].phases[phase];
        steps += cells[i].steps;
      }
      values.push_back(steps > 1e-6 ? rounded(sum / steps) : WatchJson());
    }
    phases[kPhaseNames[phase]] = std::move(values);
  }
  found["parts"] = std::move(phases);
  return found;
}

WatchJson table_of(const RunContent& content) {
  WatchJson rows = WatchJson::array();
  for (const auto& [rank, series] : content.ranks) {
    if (!is_of_now(content, rank)) {
      continue;
    }
    const auto cell = recent_cell(content, series);
    WatchJson row = {
        {"rank", rank},
        {"host", series.host},
        {"step", series.step},
        {"device", series.device},
        {"time", series.time}};
    for (const auto& quantity : kQuantities) {
      row[quantity.name] = rounded(quantity.of(cell));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

WatchJson exit_json(const RunContent& content) {
  const auto* exit = content.exit();
  if (exit == nullptr) {
    return {};
  }
  return {
      {"rank", exit->rank ? WatchJson(*exit->rank) : WatchJson()},
      {"host", exit->host},
      {"how", exit->how},
      {"error", exit->error}};
}

} // namespace

std::optional<SlowRank> find_slow_rank(const RunContent& content) {
  std::map<int, Cell> cells;
  std::vector<double> own;
  for (const auto& [rank, series] : content.ranks) {
    const auto cell = recent_cell(content, series);
    if (is_of_now(content, rank) && cell.has_steps()) {
      cells.emplace(rank, cell);
      own.push_back(cell.own());
    }
  }
  if (own.size() < 2) {
    return std::nullopt;
  }
  const double median = median_of(own);
  const auto slowest =
      std::max_element(cells.begin(), cells.end(), [](auto& a, auto& b) {
        return a.second.own() < b.second.own();
      });
  const auto& cell = slowest->second;
  const double step = cell.total() / cell.steps;
  // Ignore a difference that is small compared with the whole step.
  if (cell.own() < kSlowRatio * median ||
      cell.own() - median < (kSlowRatio - 1) / 2 * step) {
    return std::nullopt;
  }
  SlowRank slow = {.rank = slowest->first, .own = cell.own(), .median = median};
  double most = 0;
  for (size_t phase = 0; phase < kPhaseNames.size(); ++phase) {
    if (phase == kCommunicationPhase) {
      continue;
    }
    std::vector<double> values;
    for (const auto& [rank, other] : cells) {
      values.push_back(other.phases[phase] / other.steps);
    }
    const double more = cell.phases[phase] / cell.steps - median_of(values);
    if (more > most) {
      most = more;
      slow.phase = kPhaseNames[phase];
    }
  }
  return slow;
}

const char* state_of(const RunReader& run, double now) {
  if (!RunReader::is_run(run.folder())) {
    return "deleted";
  }
  const auto& content = run.content();
  if (const auto* exit = content.exit(); exit != nullptr) {
    return exit->rank ? "failed" : "interrupted";
  }
  if (content.is_behind ? content.ends_finished : content.is_finished) {
    return "finished";
  }
  if (content.end == 0) {
    return "empty";
  }
  const double limit =
      std::max(kSilenceSeconds, kSilenceShare * (content.end - content.begin));
  return now - content.end > limit ? "silent" : "running";
}

WatchJson metrics_json(const Metrics& metrics, double begin) {
  WatchJson found = WatchJson::array();
  for (const auto& [name, metric] : metrics) {
    const auto& points = metric.values.points();
    const bool is_merged =
        std::any_of(points.begin(), points.end(), [](const MetricPoint& point) {
          return point.count > 1;
        });
    WatchJson columns = {{"name", name}, {"last", last_json(metric)}};
    const auto add = [&](const char* column, auto of) {
      WatchJson values = WatchJson::array();
      for (const auto& point : points) {
        values.push_back(of(point));
      }
      columns[column] = std::move(values);
    };
    const auto if_finite = [](const MetricPoint& point, double value) {
      return point.num_finite == 0   ? WatchJson()
             : point.num_finite == 1 ? WatchJson(value)
                                     : rounded(value);
    };
    add("step", [](auto& point) { return point.first_step; });
    add("time", [&](auto& point) { return point.begin - begin; });
    add("mean", [&](auto& point) {
      return if_finite(
          point, point.sum / static_cast<double>(point.num_finite));
    });
    if (is_merged) {
      add("last_step", [](auto& point) { return point.last_step; });
      add("last_time", [&](auto& point) { return point.end - begin; });
      add("low", [&](auto& point) { return if_finite(point, point.low); });
      add("high", [&](auto& point) { return if_finite(point, point.high); });
      add("count", [](auto& point) { return point.num_finite; });
    }
    WatchJson bad = WatchJson::array();
    constexpr std::array<const char*, 3> kNames = {
        "NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < points.size(); ++i) {
      for (size_t kind = 0; kind < kNames.size(); ++kind) {
        if (const auto number = points[i].not_finite[kind]; number > 0) {
          bad.push_back({i, kNames[kind], number, points[i].not_finite_step});
        }
      }
    }
    columns["bad"] = std::move(bad);
    found.push_back(std::move(columns));
  }
  return found;
}

WatchJson ranks_json(
    const RunContent& content,
    const std::map<int, RankSeries>& ranks,
    double from,
    double to) {
  from = std::max(from, content.begin);
  to = std::min(to, content.end);
  return from <= to ? ranks_of(
                          ranks,
                          Grid(content.begin, from, to),
                          content.begin,
                          find_slow_rank(content))
                    : WatchJson();
}

WatchJson summary_of(const RunContent& content) {
  WatchJson metrics = WatchJson::array();
  for (const auto& [name, metric] : content.metrics) {
    const MetricPoint* low = nullptr;
    const MetricPoint* high = nullptr;
    for (const auto& point : metric.values.points()) {
      if (point.num_finite > 0) {
        low = low == nullptr || point.low < low->low ? &point : low;
        high = high == nullptr || point.high > high->high ? &point : high;
      }
    }
    WatchJson one = {{"name", name}, {"last", last_json(metric)}};
    if (low != nullptr) {
      one["low"] = low->low;
      one["low_step"] = low->low_step;
      one["high"] = high->high;
      one["high_step"] = high->high_step;
    }
    metrics.push_back(std::move(one));
  }
  return {
      {"begin", content.begin},
      {"end", content.end},
      {"step", content.step ? WatchJson(*content.step) : WatchJson()},
      {"num_processes", content.num_processes},
      {"configuration", content.configuration},
      {"exit", exit_json(content)},
      {"metrics", std::move(metrics)}};
}

WatchJson snapshot(const RunReader& run, double now) {
  const auto& content = run.content();
  WatchJson marks = WatchJson::array();
  for (const auto& mark : content.marks) {
    WatchJson one = {
        {"event", mark.event}, {"time", mark.time - content.begin}};
    if (mark.step) {
      one["step"] = *mark.step;
    }
    marks.push_back(std::move(one));
  }
  WatchJson logs = WatchJson::array();
  for (const auto& log : run.logs()) {
    logs.push_back(
        {{"rank", log.rank}, {"attempt", log.attempt}, {"stream", log.stream}});
  }
  const auto found = find_slow_rank(content);
  WatchJson slow;
  if (found) {
    slow = {
        {"rank", found->rank},
        {"host", content.ranks.at(found->rank).host},
        {"own", rounded(found->own)},
        {"median", rounded(found->median)},
        {"part", found->phase}};
  }
  return {
      {"step", content.step ? WatchJson(*content.step) : WatchJson()},
      {"state", state_of(run, now)},
      {"begin", content.begin},
      {"end", content.end},
      {"exit", exit_json(content)},
      {"is_behind", content.is_behind},
      {"num_processes", content.num_processes},
      {"attempt", content.attempt},
      {"host", content.host},
      {"configuration", content.configuration},
      {"origin", content.origin},
      {"marks", std::move(marks)},
      {"metrics", metrics_json(content.metrics, content.begin)},
      {"num_left_out", content.num_left_out},
      {"num_damaged", content.num_damaged},
      {"num_ranks", content.ranks.size()},
      {"ranks",
       content.ranks.empty()
           ? WatchJson()
           : ranks_json(content, content.ranks, content.begin, content.end)},
      {"table", table_of(content)},
      {"slow", std::move(slow)},
      {"logs", std::move(logs)}};
}

} // namespace accelerate
