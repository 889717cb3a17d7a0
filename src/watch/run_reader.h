// SPDX-License-Identifier: Apache-2.0
// What a run has left in its folder so far, read as it grows.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "tracking/run_folder.h"
#include "watch/line_file.h"
#include "watch/thinned.h"

namespace accelerate {

/// Values of one metric at neighbouring steps.
struct MetricPoint {
  int64_t first_step = 0;
  int64_t last_step = 0;
  /// Of the last; seconds since 1970.
  double time = 0;
  double low = 0;
  double high = 0;
  double sum = 0;
  int64_t count = 1;

  void merge(const MetricPoint& next);
};

struct Metric {
  static constexpr size_t kMaxPoints = 600;
  Thinned<MetricPoint> values{kMaxPoints};
  /// The first value that was no number that can be drawn: "NaN".
  std::string bad = {};
  int64_t bad_step = 0;
};

/// Steps of one rank between two moments.
struct RankPoint {
  double begin = 0;
  double end = 0;
  double steps = 0;
  /// Seconds of all these steps together.
  std::array<double, kPartNames.size()> parts = {};
  /// The most bytes; 0 where nothing is known.
  double memory = 0;
  double device_memory = 0;
  /// Seconds of processors, and in which the device was busy.
  double cpu = 0;
  double device_busy = 0;
  int64_t count = 1;

  void merge(const RankPoint& next);
};

struct RankSeries {
  static constexpr size_t kMaxPoints = 600;
  Thinned<RankPoint> points{kMaxPoints};
  std::string host = {};
  int64_t step = 0;
  /// Of its latest line.
  double time = 0;
};

struct RunMark {
  std::string event = {};
  double time = 0;
  std::optional<int64_t> step = {};
};

/// A file that the launcher wrote (`--log_dir`).
struct RunLog {
  int rank = 0;
  int attempt = 0;
  std::string stream = {};
  std::filesystem::path path = {};
};

struct RunContent {
  std::map<std::string, Metric> metrics = {};
  /// Names that were left out, as there were too many.
  int64_t num_left_out = 0;
  std::map<int, RankSeries> ranks = {};
  /// The latest, the oldest first.
  std::vector<RunMark> marks = {};
  std::vector<std::pair<std::string, std::string>> configuration = {};
  /// The latest that something was logged for.
  std::optional<int64_t> step = {};
  int64_t num_processes = 0;
  int64_t attempt = 0;
  std::string host = {};
  /// Of the first and the latest line; 0 where there is none.
  double begin = 0;
  double end = 0;
  bool is_finished = false;
  /// More has been written than was taken in so far.
  bool is_behind = false;
};

class ACCELERATE_API RunReader {
 public:
  static constexpr size_t kMaxMetrics = 100;
  static constexpr size_t kMaxMarks = 400;
  static constexpr size_t kMaxRanks = 4096;
  /// A moment's work: who asks waits for it, and others behind.
  static constexpr size_t kBytesPerRefresh = 16 << 20;

  explicit RunReader(std::filesystem::path folder);

  /// Whether a run has written, or begins to write, there.
  static bool is_run(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  /// Takes in what has been written since the last call, or a part of it.
  void refresh();
  const RunContent& content() const { return content_; }
  /// Of the latest start by the launcher.
  const std::vector<RunLog>& logs() const { return logs_; }

 private:
  /// False where a file has been replaced.
  bool read_files();
  void find_rank_files();
  /// Of the main process where there is no rank.
  void take_line(std::string_view line, std::optional<int> rank);
  void
  take_rank_line(const nlohmann::json& object, double time, RankSeries& series);
  void take_event(const nlohmann::json& object, double time);
  void take_configuration(const nlohmann::json& object);
  void take_values(const nlohmann::json& object, double time);
  /// What was logged for this step and later ones comes again.
  void drop_from(int64_t step);

  std::filesystem::path folder_;
  RunContent content_;
  std::vector<RunLog> logs_;
  LineFile metrics_;
  std::map<int, LineFile> rank_files_;
  /// A start has come, and no step behind it yet.
  bool is_starting_ = false;
};

/// The logs that `accelerate launch --log_dir` has left in `folder` or in a
/// folder of it: those of the latest run and its last attempt.
ACCELERATE_API std::vector<RunLog> find_logs(
    const std::filesystem::path& folder);

} // namespace accelerate
