// SPDX-License-Identifier: Apache-2.0
// The runs that a page shows.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "launcher/watch/run_reader.h"

namespace accelerate {

/// The runs in some folders. Runs keep their numbers, and new runs are
/// appended. Not thread-safe. Each call does a bounded amount of work, so long
/// files are read over many calls.
class ACCELERATE_INTERNAL RunList {
 public:
  static constexpr size_t kMaxRuns = 1000;
  /// All runs beyond `kMaxRuns` are counted, but only this many are named.
  static constexpr size_t kMaxNamesLeftOut = 20;
  /// The maximum number of points of all runs in memory: about 400 MB. Beyond
  /// that, runs that have ended are dropped, starting with the one that was
  /// shown least recently. They are read again when they are shown.
  static constexpr size_t kMaxPoints = 3'000'000;
  static constexpr size_t kMaxLogTail = 64 << 10;

  /// Each folder belongs to a run, or contains folders of runs, up to three
  /// levels deep, including runs that start later. Throws `ConfigError` if a
  /// folder does not exist.
  explicit RunList(const std::vector<std::filesystem::path>& folders);

  size_t size() const { return runs_.size(); }
  /// The given folders that contained no run at the beginning.
  const std::vector<std::filesystem::path>& empty() const { return empty_; }
  /// All runs, with a summary of those that changed after the version
  /// `since`, and the version of this answer.
  nlohmann::json list(int64_t since, double now);
  /// A snapshot of a run, or only its state if nothing changed after `since`.
  /// Empty if the run does not exist.
  std::optional<nlohmann::json>
  show(size_t run, std::optional<int64_t> since, double now);
  /// The metrics of a part of a run, and for a range of times also its ranks,
  /// read from their files again. Times are in seconds since the start of the
  /// run.
  std::optional<nlohmann::json> show_range(size_t run, AxisRange range);
  /// `time,step,name,value` of all logged values, in pieces (see `read_csv`).
  std::optional<std::string> csv(size_t run, std::optional<off_t>& offset);
  /// The end of a log, by its index in the last answer of `show`, with control
  /// characters escaped.
  std::optional<std::string> log_tail(size_t run, size_t log) const;

 private:
  struct Entry {
    std::string name = {};
    /// The number of parts of the path in the name.
    int64_t num_parts = 1;
    std::unique_ptr<RunReader> reader;
    /// The reader's version when the summary was made.
    int64_t reader_version = -1;
    /// The list's version when the summary changed.
    int64_t version = 0;
    nlohmann::json summary = {};
    std::string state = {};
    /// The number of the last call of `show` for this run.
    int64_t last_shown = 0;
    /// Whether only the summary is in memory.
    bool is_dropped = false;
  };
  /// Adds the runs in `folder` that are not listed yet. Returns the number of
  /// runs in the folder.
  size_t find_runs(const std::filesystem::path& folder);
  /// Adds a run whose name has at least `num_parts` parts of its path.
  void add(const std::filesystem::path& folder, int64_t num_parts);
  /// Names runs by their paths in the given folders. Names that are equal
  /// become longer until they differ.
  void name_runs();
  /// Continues reading runs that are not shown.
  void read_on();
  void summarise(Entry& entry, double now);
  void drop_points();
  nlohmann::json shown_folders() const;

  std::vector<std::filesystem::path> folders_;
  std::vector<std::filesystem::path> empty_;
  std::vector<Entry> runs_;
  std::set<std::filesystem::path> listed_;
  std::set<std::filesystem::path> left_out_;
  bool has_new_names_ = false;
  /// The run to read next.
  size_t next_ = 0;
  int64_t version_ = 0;
  int64_t num_shown_ = 0;
};

} // namespace accelerate
