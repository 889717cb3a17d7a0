// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/run_reader.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/printable.h"
#include "core/tracking/run_origin.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxSettings = 500;
constexpr size_t kTail = 4 << 10;

/// 12 for the name `PREFIX12SUFFIX`; empty for other names.
std::optional<int> number_in(
    std::string_view name,
    std::string_view prefix,
    std::string_view suffix = {}) {
  if (name.size() <= prefix.size() + suffix.size() ||
      !name.starts_with(prefix) || !name.ends_with(suffix)) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  int number = 0;
  const auto* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) {
    return std::nullopt;
  }
  return number;
}

/// The subfolders of `folder` whose names start with `prefix`, without links.
std::vector<fs::path> folders_in(
    const fs::path& folder,
    std::string_view prefix = {}) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with(prefix) &&
        entry->symlink_status(ignored).type() == fs::file_type::directory) {
      found.push_back(entry->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void add_logs(const fs::path& launch, std::vector<RunLog>& logs) {
  constexpr const char* kAttempt = "attempt_";
  int last = -1;
  for (const auto& folder : folders_in(launch, kAttempt)) {
    last = std::max(
        last, number_in(folder.filename().string(), kAttempt).value_or(-1));
  }
  for (const auto& folder :
       folders_in(launch / (kAttempt + std::to_string(last)), "rank_")) {
    const auto rank = number_in(folder.filename().string(), "rank_");
    for (const char* stream : {"stdout", "stderr"}) {
      const auto path = folder / (std::string(stream) + ".log");
      if (rank && open_plain_file(path)) {
        logs.push_back({*rank, last, stream, path});
      }
    }
  }
}

} // namespace

MetricPoint::MetricPoint(const LoggedValue& logged)
    : first_step(logged.step),
      last_step(logged.step),
      begin(logged.time),
      end(logged.time) {
  const double value = logged.value;
  if (std::isfinite(value)) {
    num_finite = 1;
    low = high = sum = value;
    low_step = high_step = logged.step;
  } else {
    not_finite[std::isnan(value) ? 0 : value > 0 ? 1 : 2] = 1;
    not_finite_step = logged.step;
  }
}

void MetricPoint::merge(const MetricPoint& next) {
  last_step = next.last_step;
  end = next.end;
  if (is_finite()) {
    not_finite_step = next.not_finite_step;
  }
  count += next.count;
  for (size_t i = 0; i < not_finite.size(); ++i) {
    not_finite[i] += next.not_finite[i];
  }
  if (next.num_finite == 0) {
    return;
  }
  if (num_finite == 0 || next.low < low) {
    low = next.low;
    low_step = next.low_step;
  }
  if (num_finite == 0 || next.high > high) {
    high = next.high;
    high_step = next.high_step;
  }
  num_finite += next.num_finite;
  sum += next.sum;
}

void Metric::add(const LoggedValue& logged) {
  values.add(MetricPoint(logged));
  last = logged;
}

int64_t add_values(Metrics& metrics, const ValueLine& line) {
  int64_t num_left_out = 0;
  for (const auto& value : line.values) {
    auto found = metrics.find(value.name);
    if (found == metrics.end()) {
      if (metrics.size() == kMaxWatchedMetrics ||
          value.name.size() > kMaxWatchedText) {
        ++num_left_out;
        continue;
      }
      found = metrics.try_emplace(std::string(value.name)).first;
    }
    found->second.add(
        {.step = line.step, .time = line.time, .value = value.number});
  }
  return num_left_out;
}

namespace {

/// Passes a line of values to `take_values`, and any other as JSON to
/// `take_other`. Returns false if the line is neither.
template <class TakeValues, class TakeOther>
bool parse_line(
    std::string_view text,
    ValueLine& line,
    const TakeValues& take_values,
    const TakeOther& take_other) {
  if (line.parse_fast(text)) {
    take_values(line);
  } else if (const auto object = parse_run_line(text)) {
    if (line.take(*object)) {
      take_values(line);
    } else {
      take_other(*object);
    }
  } else {
    return false;
  }
  return true;
}

} // namespace

void RankPoint::merge(const RankPoint& next) {
  end = next.end;
  steps += next.steps;
  for (size_t i = 0; i < phases.size(); ++i) {
    phases[i] += next.phases[i];
  }
  memory = std::max(memory, next.memory);
  device_memory = std::max(device_memory, next.device_memory);
  cpu += next.cpu;
  device_busy += next.device_busy;
  count += next.count;
}

void RankLines::merge(const RankLines& next) {
  to = next.to;
  end = next.end;
  count += next.count;
}

void RankSeries::add(const RunLine& line, const Json& values) {
  RankPoint point = {
      .begin = std::min(time, line.time),
      .end = line.time,
      .steps = amount_field(values, kStepsValue),
      .memory = amount_field(values, kMemoryValue),
      .device_memory = amount_field(values, kDeviceMemoryValue),
      .cpu = amount_field(values, kCpuValue),
      .device_busy = amount_field(values, kDeviceBusyValue)};
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    point.phases[i] = amount_field(values, kPhaseNames[i]);
  }
  points.add(point);
}

std::vector<RunLog> find_logs(const fs::path& folder) {
  constexpr const char* kLaunch = "run_";
  auto launches = folders_in(folder, kLaunch);
  for (const auto& inner : folders_in(folder)) {
    for (auto& launch : folders_in(inner, kLaunch)) {
      launches.push_back(std::move(launch));
    }
  }
  // Names of launch folders begin with the time of the launch.
  const auto latest = std::max_element(
      launches.begin(), launches.end(), [](const auto& a, const auto& b) {
        return a.filename() < b.filename();
      });
  std::vector<RunLog> logs;
  if (latest != launches.end()) {
    add_logs(*latest, logs);
  }
  std::stable_sort(logs.begin(), logs.end(), [](auto& a, auto& b) {
    return a.rank < b.rank;
  });
  return logs;
}

RunReader::RunReader(fs::path folder)
    : folder_(std::move(folder)),
      metrics_(folder_ / kMetricsFile),
      exits_(folder_ / kExitsFile) {}

bool RunReader::is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(
             fs::symlink_status(folder / kMetricsFile, ignored)) ||
         fs::is_directory(fs::symlink_status(folder / kRanksFolder, ignored));
}

void RunReader::refresh() {
  size_t budget = kBytesPerRefresh;
  find_rank_files();
  if (!read_files(budget, /*is_with_ranks=*/true)) {
    start_over();
    find_rank_files();
    read_files(budget, /*is_with_ranks=*/true);
  }
  logs_ = find_logs(folder_);
}

size_t RunReader::refresh_metrics(size_t budget) {
  const size_t before = budget;
  if (!read_files(budget, /*is_with_ranks=*/false)) {
    start_over();
    read_files(budget, /*is_with_ranks=*/false);
  }
  return before - budget;
}

// Starts again, because another run has replaced the contents of the folder.
void RunReader::start_over() {
  content_ = {};
  metrics_ = LineFile(folder_ / kMetricsFile);
  exits_ = LineFile(folder_ / kExitsFile);
  rank_files_.clear();
  index_ = {};
  is_starting_ = false;
  ++version_;
}

bool RunReader::read_files(size_t& budget, bool is_with_ranks) {
  const bool is_first = version_ == 0;
  bool is_same =
      metrics_.read(budget, [this](std::string_view line, off_t offset) {
        take_main_line(line, offset);
      });
  size_t exit_budget = LineFile::kMaxLine;
  is_same = is_same && exits_.read(exit_budget, [this](auto line, off_t) {
    take_exit(line);
  });
  if (is_with_ranks) {
    for (auto& [rank, file] : rank_files_) {
      is_same = is_same &&
                file.read(budget, [this, rank = rank](auto line, off_t offset) {
                  take_rank_line(line, rank, offset);
                });
    }
  }
  if (content_.is_behind != (budget == 0)) {
    content_.is_behind = budget == 0;
    ++version_;
  }
  if (is_first || !is_with_ranks) {
    look_at_end();
  }
  return is_same;
}

void RunReader::look_at_end() {
  const auto look = [this](const fs::path& path) {
    const auto tail = read_tail(path, kTail);
    const size_t end = tail.rfind('\n');
    if (end == std::string::npos) {
      return false;
    }
    const size_t before = end == 0 ? end : tail.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    const auto line =
        parse_run_line(std::string_view(tail).substr(begin, end - begin));
    if (line) {
      note_time(line->time);
    }
    return line && text_field(line->object, "event") == "finish";
  };
  content_.ends_finished = content_.is_behind && look(folder_ / kMetricsFile);
  // Rank 0 writes its step times more often than the program logs, so its file
  // shows the latest time.
  if (!content_.is_finished && !content_.ends_finished) {
    look(folder_ / kRanksFolder / rank_file_name(0));
  }
}

void RunReader::find_rank_files() {
  const auto folder = folder_ / kRanksFolder;
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) {
    return;
  }
  for (fs::directory_iterator entry(folder, error), end;
       !error && entry != end && rank_files_.size() < kMaxRanks;
       entry.increment(error)) {
    const auto rank = number_in(
        entry->path().filename().string(), kRankFilePrefix, kLinesSuffix);
    if (rank) {
      rank_files_.try_emplace(*rank, entry->path());
    }
  }
}

size_t RunReader::num_points() const {
  size_t number = 0;
  for (const auto& [name, metric] : content_.metrics) {
    number += metric.values.points().size();
  }
  for (const auto& [rank, series] : content_.ranks) {
    number += series.points.points().size();
  }
  return number;
}

void RunReader::note_time(double time) {
  content_.begin = content_.begin > 0 ? std::min(content_.begin, time) : time;
  if (time > content_.end) {
    content_.end = time;
    ++version_;
  }
}

void RunReader::take_main_line(std::string_view text, off_t offset) {
  const off_t end = offset + static_cast<off_t>(text.size()) + 1;
  const auto note_damage = [this] {
    ++content_.num_damaged;
    ++version_;
  };
  const bool is_line = parse_line(
      text,
      line_,
      [&](const ValueLine& line) {
        ++version_;
        note_time(line.time);
        take_values(line, offset, end);
      },
      [&](const RunLine& line) {
        ++version_;
        note_time(line.time);
        if (line.object.contains("event")) {
          take_event(line, offset);
        } else {
          note_damage();
        }
      });
  if (!is_line && !text.empty()) {
    note_damage();
  }
}

void RunReader::take_exit(std::string_view text) {
  const auto line = parse_run_line(text);
  if (!line || text_field(line->object, "event") != "exit") {
    return;
  }
  ++version_;
  RunExit exit = {
      .time = line->time,
      .exit_code = static_cast<int>(
          std::min(amount_field(line->object, "exit_code"), 255.0)),
      .host = text_field(line->object, "host"),
      .how = text_field(line->object, "how"),
      .error = text_field(line->object, "error")};
  const auto rank = number_field(line->object, "rank");
  if (rank && *rank >= 0 && *rank < double{kMaxRanks}) {
    exit.rank = static_cast<int>(*rank);
  }
  note_time(line->time);
  content_.last_exit = std::move(exit);
}

void RunReader::take_rank_line(std::string_view text, int rank, off_t offset) {
  const auto line = parse_run_line(text);
  if (!line) {
    return;
  }
  ++version_;
  note_time(line->time);
  auto& series = content_.ranks[rank];
  const auto& object = line->object;
  const auto values = object.find("values");
  if (values != object.end() && values->is_object()) {
    if (series.time > 0) {
      series.add(*line, *values);
      series.lines.add(
          {.from = offset,
           .to = offset + static_cast<off_t>(text.size()) + 1,
           .begin = std::min(series.time, line->time),
           .end = line->time});
    }
    series.step = line->step.value_or(0);
  } else if (text_field(object, "event") == "start") {
    series.host = text_field(object, "host");
    series.device = text_field(object, "device");
    if (rank == 0) {
      take_origin(object);
    }
  }
  series.time = line->time;
}

void RunReader::take_event(const RunLine& line, off_t offset) {
  RunMark mark = {
      .event = text_field(line.object, "event"),
      .time = line.time,
      .step = line.step};
  if (mark.event == "configuration") {
    take_configuration(line.object);
    return;
  }
  if (mark.event == "start") {
    take_start(line);
  } else if (mark.event == "resume") {
    drop_from(mark.step.value_or(0), offset);
  } else if (mark.event == "finish") {
    content_.is_finished = true;
  }
  if (content_.marks.size() == kMaxMarks) {
    content_.marks.erase(content_.marks.begin());
  }
  content_.marks.push_back(std::move(mark));
}

void RunReader::take_start(const RunLine& line) {
  const auto& object = line.object;
  is_starting_ = true;
  content_.is_finished = false;
  content_.start_time = line.time;
  content_.num_processes = static_cast<int64_t>(
      std::min(amount_field(object, "num_processes"), double{kMaxRanks}));
  content_.attempt = static_cast<int64_t>(amount_field(object, "attempt"));
  content_.host = text_field(object, "host");
}

void RunReader::take_origin(const Json& object) {
  content_.origin.clear();
  for (const char* name : {"command", "directory", "commit"}) {
    if (auto text = text_field(object, name); !text.empty()) {
      content_.origin.emplace_back(name, std::move(text));
    }
  }
  const auto versions = object.find("versions");
  if (versions != object.end() && versions->is_object()) {
    for (const auto& [name, value] : versions->items()) {
      if (value.is_string() && content_.origin.size() < kMaxSettings) {
        content_.origin.emplace_back(
            shortened(name), shortened(value.get<std::string>()));
      }
    }
  }
}

void RunReader::take_configuration(const Json& object) {
  content_.configuration.clear();
  const auto values = object.find("values");
  if (values == object.end() || !values->is_object()) {
    return;
  }
  for (const auto& [name, value] : values->items()) {
    if (content_.configuration.size() == kMaxSettings) {
      return;
    }
    auto text = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_string() && !text.empty() && is_secret_name(name)) {
      text = "***";
    }
    content_.configuration.emplace_back(
        shortened(name), shortened(std::move(text)));
  }
}

void RunReader::take_values(const ValueLine& line, off_t offset, off_t end) {
  if (is_starting_) {
    // After a start without a resume, new values replace earlier ones.
    drop_from(line.step, offset);
  }
  content_.step = line.step;
  index_.add(offset, end, line.step, line.time);
  content_.num_left_out += add_values(content_.metrics, line);
}

void RunReader::drop_from(int64_t step, off_t offset) {
  is_starting_ = false;
  index_.cut(offset, step);
  for (auto& [name, metric] : content_.metrics) {
    // A point of several steps is dropped as a whole, so that no discarded
    // value is shown.
    metric.values.drop_last_while(
        [&](const MetricPoint& point) { return point.last_step >= step; });
    if (metric.last && metric.last->step >= step) {
      metric.last.reset();
      const auto& points = metric.values.points();
      if (!points.empty() && points.back().count == 1 &&
          points.back().num_finite == 1) {
        const auto& point = points.back();
        metric.last = {point.last_step, point.end, point.sum};
      }
    }
  }
}

std::optional<Metrics> RunReader::read_range(const AxisRange& range) const {
  const auto stretches = index_.stretches(range);
  off_t size = 0;
  for (const auto& [begin, end] : stretches) {
    size += end - begin;
  }
  if (size > static_cast<off_t>(kBytesPerRange)) {
    return std::nullopt;
  }
  Metrics metrics;
  ValueLine parsed;
  const auto take = [&](std::string_view text, off_t offset) {
    parse_line(
        text,
        parsed,
        [&](const ValueLine& line) {
          if (range.contains(line.step, line.time) &&
              index_.is_live(offset, line.step)) {
            add_values(metrics, line);
          }
        },
        [](const RunLine&) {});
  };
  for (const auto& [begin, end] : stretches) {
    if (!metrics_.read_again(begin, end, take)) {
      return std::nullopt;
    }
  }
  return metrics;
}

std::optional<std::map<int, RankSeries>> RunReader::read_ranks(
    double from,
    double to) const {
  const auto is_wanted = [&](const auto& interval) {
    return interval.end >= from && interval.begin <= to;
  };
  off_t size = 0;
  for (const auto& [rank, series] : content_.ranks) {
    for (const auto& lines : series.lines.points()) {
      size += is_wanted(lines) ? lines.to - lines.from : 0;
    }
  }
  if (size > static_cast<off_t>(kRankBytesPerRange)) {
    return std::nullopt;
  }
  std::map<int, RankSeries> found;
  for (const auto& [rank, series] : content_.ranks) {
    auto& again = found[rank];
    for (const auto& lines : series.lines.points()) {
      if (!is_wanted(lines)) {
        continue;
      }
      again.time = lines.begin;
      const auto take = [&](std::string_view text, off_t) {
        const auto line = parse_run_line(text);
        if (!line) {
          return;
        }
        const auto values = line->object.find("values");
        if (values != line->object.end() && values->is_object() &&
            line->time >= from && again.time <= to) {
          again.add(*line, *values);
        }
        again.time = line->time;
      };
      if (!rank_files_.at(rank).read_again(lines.from, lines.to, take)) {
        return std::nullopt;
      }
    }
  }
  return found;
}

namespace {

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "\"";
  // Escapes line breaks, so that a row stays on one line.
  for (const char letter : printable(text)) {
    quoted += letter;
    if (letter == '"') {
      quoted += letter;
    }
  }
  return quoted + '"';
}

} // namespace

std::string RunReader::read_csv(std::optional<off_t>& offset) const {
  const off_t begin = offset.value_or(0);
  const off_t limit = begin + static_cast<off_t>(kBytesPerPiece);
  std::string rows;
  off_t next = begin;
  ValueLine parsed;
  const auto take = [&](std::string_view text, off_t at) {
    next = at + static_cast<off_t>(text.size()) + 1;
    parse_line(
        text,
        parsed,
        [&](const ValueLine& line) {
          if (!index_.is_live(at, line.step)) {
            return;
          }
          for (const auto& value : line.values) {
            rows += line.time_text;
            rows += ',';
            rows += std::to_string(line.step);
            rows += ',';
            rows += csv_field(value.name);
            rows += ',';
            rows += value.text;
            rows += '\n';
          }
        },
        [](const RunLine&) {});
  };
  const bool is_same = metrics_.read_again(begin, limit, take);
  if (next == begin) {
    next = limit; // The line is too long.
  }
  if (is_same && next < metrics_.offset()) {
    offset = next;
  } else {
    offset.reset();
  }
  return rows;
}

} // namespace accelerate
