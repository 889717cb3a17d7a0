// SPDX-License-Identifier: Apache-2.0
#include "watch/run_reader.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMaxText = 1000;
constexpr size_t kMaxSettings = 500;
/// Steps and times beyond are no work of a run's.
constexpr double kMaxNumber = 1e15;

/// `PREFIX12SUFFIX` as 12.
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

std::string shortened(std::string text) {
  if (text.size() > kMaxText) {
    text.resize(kMaxText);
  }
  return text;
}

std::string text_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string()
             ? shortened(found->get<std::string>())
             : std::string();
}

std::optional<double> number_of(const Json& value) {
  if (value.is_boolean()) {
    return value.get<bool>() ? 1 : 0;
  }
  if (!value.is_number()) {
    return std::nullopt;
  }
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<double> number_field(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    return std::nullopt;
  }
  const auto number = number_of(*found);
  return number && std::abs(*number) <= kMaxNumber ? number : std::nullopt;
}

double amount(const Json& object, const char* name) {
  return std::max(number_field(object, name).value_or(0), 0.0);
}

/// The folders in `folder` whose names are `prefix` and something; no links.
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

void MetricPoint::merge(const MetricPoint& next) {
  last_step = next.last_step;
  time = next.time;
  low = std::min(low, next.low);
  high = std::max(high, next.high);
  sum += next.sum;
  count += next.count;
}

void RankPoint::merge(const RankPoint& next) {
  end = next.end;
  steps += next.steps;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] += next.parts[i];
  }
  memory = std::max(memory, next.memory);
  device_memory = std::max(device_memory, next.device_memory);
  cpu += next.cpu;
  device_busy += next.device_busy;
  count += next.count;
}

std::vector<RunLog> find_logs(const fs::path& folder) {
  constexpr const char* kLaunch = "run_";
  auto launches = folders_in(folder, kLaunch);
  for (const auto& inner : folders_in(folder)) {
    for (auto& launch : folders_in(inner, kLaunch)) {
      launches.push_back(std::move(launch));
    }
  }
  // Their names begin with the time of the launch.
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
    : folder_(std::move(folder)), metrics_(folder_ / kMetricsFile) {}

bool RunReader::is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(
             fs::symlink_status(folder / kMetricsFile, ignored)) ||
         fs::is_directory(fs::symlink_status(folder / kRanksFolder, ignored));
}

void RunReader::refresh() {
  find_rank_files();
  if (!read_files()) {
    // Another run has taken the folder.
    content_ = {};
    metrics_ = LineFile(folder_ / kMetricsFile);
    rank_files_.clear();
    is_starting_ = false;
    find_rank_files();
    read_files();
  }
  logs_ = find_logs(folder_);
}

bool RunReader::read_files() {
  size_t budget = kBytesPerRefresh;
  bool is_same = metrics_.read(
      budget, [this](std::string_view line) { take_line(line, std::nullopt); });
  for (auto& [rank, file] : rank_files_) {
    is_same = is_same &&
              file.read(budget, [this, rank = rank](std::string_view line) {
                take_line(line, rank);
              });
  }
  content_.is_behind = budget == 0;
  return is_same;
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

void RunReader::take_line(std::string_view line, std::optional<int> rank) {
  const auto object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return;
  }
  const auto time = number_field(object, "time");
  if (!time || *time <= 0) {
    return;
  }
  content_.begin = content_.begin > 0 ? std::min(content_.begin, *time) : *time;
  content_.end = std::max(content_.end, *time);
  if (rank) {
    take_rank_line(object, *time, content_.ranks[*rank]);
  } else if (object.contains("event")) {
    take_event(object, *time);
  } else {
    take_values(object, *time);
  }
}

void RunReader::take_rank_line(
    const Json& object,
    double time,
    RankSeries& series) {
  const auto values = object.find("values");
  if (values != object.end() && values->is_object()) {
    RankPoint point = {
        .begin = std::min(series.time, time),
        .end = time,
        .steps = amount(*values, kStepsValue),
        .memory = amount(*values, kMemoryValue),
        .device_memory = amount(*values, kDeviceMemoryValue),
        .cpu = amount(*values, kCpuValue),
        .device_busy = amount(*values, kDeviceBusyValue)};
    for (size_t i = 0; i < kPartNames.size(); ++i) {
      point.parts[i] = amount(*values, kPartNames[i]);
    }
    if (series.time > 0) {
      series.points.add(point);
    }
    series.step =
        static_cast<int64_t>(number_field(object, "step").value_or(0));
  } else if (auto host = text_field(object, "host"); !host.empty()) {
    series.host = std::move(host);
  }
  series.time = time;
}

void RunReader::take_event(const Json& object, double time) {
  RunMark mark = {.event = text_field(object, "event"), .time = time};
  if (const auto step = number_field(object, "step")) {
    mark.step = static_cast<int64_t>(*step);
  }
  if (mark.event == "configuration") {
    take_configuration(object);
    return;
  }
  if (mark.event == "start") {
    content_.is_finished = false;
    is_starting_ = true;
    content_.num_processes = static_cast<int64_t>(
        std::min(amount(object, "num_processes"), double{kMaxRanks}));
    content_.attempt = static_cast<int64_t>(amount(object, "attempt"));
    content_.host = text_field(object, "host");
  } else if (mark.event == "resume") {
    drop_from(mark.step.value_or(0));
  } else if (mark.event == "finish") {
    content_.is_finished = true;
  }
  if (content_.marks.size() == kMaxMarks) {
    content_.marks.erase(content_.marks.begin());
  }
  content_.marks.push_back(std::move(mark));
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
    content_.configuration.emplace_back(
        shortened(name),
        shortened(value.is_string() ? value.get<std::string>() : value.dump()));
  }
}

void RunReader::take_values(const Json& object, double time) {
  const auto values = object.find("values");
  const auto step_number = number_field(object, "step");
  if (values == object.end() || !values->is_object() || !step_number) {
    return;
  }
  const auto step = static_cast<int64_t>(*step_number);
  if (is_starting_) {
    // A start without a resume: whatever it does again counts.
    drop_from(step);
  }
  content_.step = step;
  for (const auto& [name, value] : values->items()) {
    const auto number = number_of(value);
    const auto text = value.is_string() ? value.get<std::string>() : "";
    const bool is_bad =
        text == "NaN" || text == "Infinity" || text == "-Infinity";
    if (!number && !is_bad) {
      continue;
    }
    auto found = content_.metrics.find(name);
    if (found == content_.metrics.end()) {
      if (content_.metrics.size() == kMaxMetrics || name.size() > kMaxText) {
        ++content_.num_left_out;
        continue;
      }
      found = content_.metrics.try_emplace(name).first;
    }
    if (number) {
      found->second.values.add(
          {.first_step = step,
           .last_step = step,
           .time = time,
           .low = *number,
           .high = *number,
           .sum = *number});
    } else if (found->second.bad.empty()) {
      found->second.bad = text;
      found->second.bad_step = step;
    }
  }
}

void RunReader::drop_from(int64_t step) {
  is_starting_ = false;
  for (auto& [name, metric] : content_.metrics) {
    // A point of several steps goes whole: none of it that no longer counts is
    // to be seen.
    metric.values.drop_last_while(
        [&](const MetricPoint& point) { return point.last_step >= step; });
    if (metric.bad_step >= step) {
      metric.bad.clear();
    }
  }
}

} // namespace accelerate
