// SPDX-License-Identifier: Apache-2.0
#include "watch/run_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "base/printable.h"
#include "base/str.h"
#include "watch/snapshot.h"

namespace accelerate {
namespace {

std::string name_of_run(const std::filesystem::path& folder) {
  return folder.has_filename() ? folder.filename().string()
                               : folder.parent_path().filename().string();
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
    add(folder);
    return 1;
  }
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end;
       !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->symlink_status(ignored).type() ==
            std::filesystem::file_type::directory &&
        RunReader::is_run(entry->path())) {
      found.push_back(entry->path());
    }
  }
  std::sort(found.begin(), found.end());
  for (const auto& run : found) {
    add(run);
  }
  return found.size();
}

void RunList::add(const std::filesystem::path& folder) {
  const bool is_listed =
      std::any_of(runs_.begin(), runs_.end(), [&](const Entry& entry) {
        return entry.reader->folder() == folder;
      });
  if (!is_listed && runs_.size() < kMaxRuns) {
    runs_.push_back(
        {printable(name_of_run(folder)), std::make_unique<RunReader>(folder)});
  }
}

nlohmann::json RunList::list() {
  for (const auto& folder : folders_) {
    find_runs(folder);
  }
  nlohmann::json names = nlohmann::json::array();
  for (const auto& run : runs_) {
    names.push_back(
        {{"name", run.name},
         {"folder", printable(run.reader->folder().string())}});
  }
  return {{"runs", std::move(names)}};
}

std::optional<nlohmann::json> RunList::show(size_t run, double now) {
  if (run >= runs_.size()) {
    return std::nullopt;
  }
  auto& entry = runs_[run];
  entry.reader->refresh();
  auto shown = snapshot(*entry.reader, now);
  shown["name"] = entry.name;
  return shown;
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
