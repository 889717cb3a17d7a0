// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/run_list.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "launcher/watch/snapshot.h"

namespace accelerate {
namespace {

/// The time limit of one call of `list`, and how much of each file it reads at
/// a time.
constexpr std::chrono::milliseconds kReadingTime{150};
constexpr size_t kFirstBytes = 64 << 10;
constexpr size_t kBytesPerStep = 1 << 20;
/// How deep below a given folder runs are found, and how many entries of
/// folders one search looks at.
constexpr int kMaxDepth = 3;
constexpr int kMaxEntries = 20'000;

std::string name_of_run(const std::filesystem::path& folder) {
  return folder.has_filename() ? folder.filename().string()
                               : folder.parent_path().filename().string();
}

/// The last `num_parts` parts of a path.
std::string end_of_path(const std::filesystem::path& path, int64_t num_parts) {
  std::string name = name_of_run(path);
  auto parent = path.parent_path();
  for (int64_t i = 1; i < num_parts && parent.has_filename(); ++i) {
    name = parent.filename().string() + '/' + name;
    parent = parent.parent_path();
  }
  return printable(name);
}

/// Adds the runs below `folder` to `found`, without following links. Hidden
/// folders and folders inside of runs are left out.
void search(
    const std::filesystem::path& folder,
    int depth,
    int& num_entries,
    std::vector<std::filesystem::path>& found) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end;
       !error && entry != end && num_entries < kMaxEntries;
       entry.increment(error)) {
    ++num_entries;
    std::error_code ignored;
    if (entry->is_symlink(ignored) || !entry->is_directory(ignored)) {
      continue;
    }
    if (RunReader::is_run(entry->path())) {
      found.push_back(entry->path());
    } else if (
        depth < kMaxDepth &&
        !entry->path().filename().string().starts_with('.')) {
      search(entry->path(), depth + 1, num_entries, found);
    }
  }
}

} // namespace

RunList::RunList(const std::vector<std::filesystem::path>& folders) {
  for (const auto& given : folders) {
    std::error_code error;
    const auto folder = std::filesystem::canonical(given, error);
    if (error || !std::filesystem::is_directory(folder, error)) {
      throw ConfigError(str_cat(
          "[watch] Cannot read the folder '",
          given.string(),
          "': ",
          error ? error.message() : std::string("it is a file"),
          ". Pass the folder of a run, logging_dir/PROJECT"));
    }
    folders_.push_back(folder);
    if (find_runs(folder) == 0) {
      empty_.push_back(given);
    }
  }
}

size_t RunList::find_runs(const std::filesystem::path& folder) {
  if (RunReader::is_run(folder)) {
    add(folder, 1);
    return 1;
  }
  std::vector<std::filesystem::path> found;
  int num_entries = 0;
  search(folder, 1, num_entries, found);
  std::sort(found.begin(), found.end());
  for (const auto& run : found) {
    const auto inside = run.lexically_relative(folder);
    add(run, std::distance(inside.begin(), inside.end()));
  }
  return found.size();
}

void RunList::add(const std::filesystem::path& folder, int64_t num_parts) {
  if (listed_.contains(folder)) {
    return;
  }
  if (runs_.size() == kMaxRuns) {
    left_out_.insert(folder);
    return;
  }
  listed_.insert(folder);
  Entry entry;
  entry.reader = std::make_unique<RunReader>(folder);
  entry.num_parts = num_parts;
  runs_.push_back(std::move(entry));
  has_new_names_ = true;
}

void RunList::name_runs() {
  if (!std::exchange(has_new_names_, false)) {
    return;
  }
  for (auto& entry : runs_) {
    entry.name = end_of_path(entry.reader->folder(), entry.num_parts);
  }
  for (bool is_done = false; !is_done;) {
    is_done = true;
    std::map<std::string, std::vector<Entry*>> named;
    for (auto& entry : runs_) {
      named[entry.name].push_back(&entry);
    }
    for (const auto& [name, entries] : named) {
      for (size_t i = 0; entries.size() > 1 && i < entries.size(); ++i) {
        auto& entry = *entries[i];
        entry.name = end_of_path(entry.reader->folder(), ++entry.num_parts);
        // A whole path cannot become longer.
        is_done = is_done && entry.name == name;
      }
    }
  }
}

void RunList::read_on() {
  const auto deadline = std::chrono::steady_clock::now() + kReadingTime;
  // First read the beginning and the end of every run.
  for (auto& entry : runs_) {
    if (entry.reader->version() == 0 && !entry.is_dropped) {
      entry.reader->refresh_metrics(kFirstBytes);
    }
  }
  for (size_t i = 0; i < runs_.size(); ++i) {
    auto& entry = runs_[next_];
    while (!entry.is_dropped) {
      entry.reader->refresh_metrics(kBytesPerStep);
      if (std::chrono::steady_clock::now() >= deadline) {
        return;
      }
      if (!entry.reader->content().is_behind) {
        break;
      }
    }
    next_ = (next_ + 1) % runs_.size();
  }
}

void RunList::summarise(Entry& entry, double now) {
  if (entry.is_dropped) {
    return;
  }
  const auto& content = entry.reader->content();
  const std::string state = state_of(*entry.reader, now);
  if (entry.reader_version == entry.reader->version() && state == entry.state) {
    return;
  }
  entry.reader_version = entry.reader->version();
  entry.state = state;
  entry.version = ++version_;
  entry.summary = summary_of(content);
  entry.summary["state"] = state;
  entry.summary["is_behind"] = content.is_behind;
}

void RunList::drop_points() {
  size_t number = 0;
  std::vector<Entry*> over;
  for (auto& entry : runs_) {
    number += entry.reader->num_points();
    if (!entry.is_dropped && !entry.reader->content().is_behind &&
        (entry.state == "finished" || entry.state == "failed" ||
         entry.state == "interrupted" || entry.state == "silent")) {
      over.push_back(&entry);
    }
  }
  if (number <= kMaxPoints) {
    return;
  }
  std::sort(over.begin(), over.end(), [](const Entry* a, const Entry* b) {
    return a->last_shown < b->last_shown;
  });
  for (auto* entry : over) {
    number -= entry->reader->num_points();
    entry->reader = std::make_unique<RunReader>(entry->reader->folder());
    entry->is_dropped = true;
    if (number <= kMaxPoints) {
      return;
    }
  }
}

nlohmann::json RunList::list(int64_t since, double now) {
  for (const auto& folder : folders_) {
    find_runs(folder);
  }
  name_runs();
  read_on();
  nlohmann::json runs = nlohmann::json::array();
  bool is_behind = false;
  for (auto& entry : runs_) {
    summarise(entry, now);
    is_behind |= entry.reader->content().is_behind;
    nlohmann::json one = {{"name", entry.name}};
    if (entry.version > since) {
      one["folder"] = printable(entry.reader->folder().string());
      one["summary"] = entry.summary;
    }
    runs.push_back(std::move(one));
  }
  drop_points();
  nlohmann::json names = nlohmann::json::array();
  for (const auto& folder : left_out_) {
    if (names.size() < kMaxNamesLeftOut) {
      names.push_back(printable(name_of_run(folder)));
    }
  }
  return {
      {"version", version_},
      {"now", now},
      {"runs", std::move(runs)},
      {"folders", shown_folders()},
      {"is_behind", is_behind},
      {"num_left_out", left_out_.size()},
      {"left_out", std::move(names)}};
}

nlohmann::json RunList::shown_folders() const {
  nlohmann::json names = nlohmann::json::array();
  for (const auto& folder : folders_) {
    names.push_back(printable(folder.string()));
  }
  return names;
}

std::optional<nlohmann::json>
RunList::show(size_t run, std::optional<int64_t> since, double now) {
  if (run >= runs_.size()) {
    return std::nullopt;
  }
  auto& entry = runs_[run];
  entry.is_dropped = false;
  entry.last_shown = ++num_shown_;
  entry.reader->refresh();
  auto shown = since == entry.reader->version()
                   ? nlohmann::json({{"state", state_of(*entry.reader, now)}})
                   : snapshot(*entry.reader, now);
  shown["version"] = entry.reader->version();
  shown["now"] = now;
  return shown;
}

std::optional<nlohmann::json> RunList::show_range(size_t run, AxisRange range) {
  if (run >= runs_.size()) {
    return std::nullopt;
  }
  const auto& reader = *runs_[run].reader;
  const auto& content = reader.content();
  const double begin = content.begin;
  if (range.axis == RunAxis::kTime) {
    range.from += begin;
    range.to += begin;
  }
  const auto metrics = reader.read_range(range);
  nlohmann::json shown = {
      {"metrics", metrics ? metrics_json(*metrics, begin) : nlohmann::json()}};
  if (range.axis == RunAxis::kTime && !content.ranks.empty()) {
    // If the files cannot be read in time, use the points in memory.
    const auto ranks = reader.read_ranks(range.from, range.to);
    shown["ranks"] = ranks_json(
        content, ranks ? *ranks : content.ranks, range.from, range.to);
  }
  return shown;
}

std::optional<std::string> RunList::csv(
    size_t run,
    std::optional<off_t>& offset) {
  if (run >= runs_.size()) {
    return std::nullopt;
  }
  return runs_[run].reader->read_csv(offset);
}

std::optional<std::string> RunList::log_tail(size_t run, size_t log) const {
  if (run >= runs_.size() || log >= runs_[run].reader->logs().size()) {
    return std::nullopt;
  }
  return printable(
      read_tail(runs_[run].reader->logs()[log].path, kMaxLogTail),
      LineEnds::kKept);
}

} // namespace accelerate
