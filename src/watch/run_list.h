// SPDX-License-Identifier: Apache-2.0
// The runs that a page shows.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "watch/run_reader.h"

namespace accelerate {

/// Runs keep their numbers: new ones come behind. Used by one thread.
class ACCELERATE_API RunList {
 public:
  static constexpr size_t kMaxRuns = 100;
  static constexpr size_t kMaxLogTail = 64 << 10;

  /// Each folder is that of a run, or contains those of runs, also of later
  /// ones. Throws `ConfigError` if a folder does not exist.
  explicit RunList(const std::vector<std::filesystem::path>& folders);

  size_t size() const { return runs_.size(); }
  /// The folders, as given, that contained no run at the beginning.
  const std::vector<std::filesystem::path>& empty() const { return empty_; }
  /// The names of all runs there are by now.
  nlohmann::json list();
  /// Nothing where there is no such run.
  std::optional<nlohmann::json> show(size_t run, double now);
  /// The end of the log at this place of what `show` listed last, harmless to
  /// show.
  std::optional<std::string> log_tail(size_t run, size_t log) const;

 private:
  struct Entry {
    std::string name;
    std::unique_ptr<RunReader> reader;
  };
  /// Lists the runs in `folder` that are not listed yet; returns how many it
  /// has.
  size_t find_runs(const std::filesystem::path& folder);
  void add(const std::filesystem::path& folder);

  std::vector<std::filesystem::path> folders_;
  std::vector<std::filesystem::path> empty_;
  std::vector<Entry> runs_;
};

} // namespace accelerate
