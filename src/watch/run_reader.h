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
#include "watch/json_fields.h"
#include "watch/line_file.h"
#include "watch/thinned.h"
#include "watch/value_index.h"
#include "watch/value_line.h"

namespace accelerate {

/// A value as it was logged; NaN and infinities too.
struct LoggedValue {
  int64_t step = 0;
  /// Seconds since 1970.
  double time = 0;
  double value = 0;
};

/// Values of one metric at neighbouring steps.
struct MetricPoint {
  int64_t first_step = 0;
  int64_t last_step = 0;
  /// Seconds since 1970.
  double begin = 0;
  double end = 0;
  /// All values; the fields below are of the finite ones.
  int64_t count = 1;
  int64_t num_finite = 0;
  double low = 0;
  double high = 0;
  int64_t low_step = 0;
  int64_t high_step = 0;
  double sum = 0;
  /// NaN, infinity, -infinity; and the step of the first of them.
  std::array<int64_t, 3> not_finite = {};
  int64_t not_finite_step = 0;

  bool is_finite() const { return num_finite == count; }

  MetricPoint() = default;
  explicit MetricPoint(const LoggedValue& logged);
  void merge(const MetricPoint& next);
};

inline constexpr size_t kMaxWatchedMetrics = 100;

struct Metric {
  static constexpr size_t kMaxPoints = 600;
  Thinned<MetricPoint> values{kMaxPoints};
  /// The latest; none after a resume that it does not survive.
  std::optional<LoggedValue> last = {};

  void add(const LoggedValue& logged);
};
using Metrics = std::map<std::string, Metric, std::less<>>;

/// How the launcher saw the run end.
struct RunExit {
  double time = 0;
  int exit_code = 0;
  /// Of the process that failed first; none if the job was interrupted.
  std::optional<int> rank = {};
  std::string host = {};
  /// "failed with exit code 1"
  std::string how = {};
  /// "ValueError: bad batch"; may be empty.
  std::string error = {};
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
  std::string device = {};
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
  Metrics metrics = {};
  /// Values whose names were left out because there are too many.
  int64_t num_left_out = 0;
  std::map<int, RankSeries> ranks = {};
  /// The latest, the oldest first.
  std::vector<RunMark> marks = {};
  std::vector<std::pair<std::string, std::string>> configuration = {};
  /// Of the latest start of rank 0: command line, commit, versions.
  std::vector<std::pair<std::string, std::string>> origin = {};
  /// The latest that something was logged for.
  std::optional<int64_t> step = {};
  int64_t num_processes = 0;
  int64_t attempt = 0;
  std::string host = {};
  /// Of the first and the latest line; 0 where there is none.
  double begin = 0;
  double end = 0;
  bool is_finished = false;
  /// While more is to be read: whether the last line says so.
  bool ends_finished = false;
  /// Of the latest start.
  double start_time = 0;
  /// The latest; only counts if nothing has started since.
  std::optional<RunExit> last_exit = {};
  /// More has been written than was taken in so far.
  bool is_behind = false;

  const RunExit* exit() const {
    // As long as later starts may not have been read, nothing may follow it.
    const double least = is_behind ? end : start_time;
    return last_exit && last_exit->time >= least ? &*last_exit : nullptr;
  }
};

class ACCELERATE_API RunReader {
 public:
  static constexpr size_t kMaxMetrics = kMaxWatchedMetrics;
  static constexpr size_t kMaxMarks = 400;
  static constexpr size_t kMaxRanks = 4096;
  /// A moment's work: who asks waits for it, and others behind.
  static constexpr size_t kBytesPerRefresh = 16 << 20;
  /// Of one range or piece of a file that is read again.
  static constexpr size_t kBytesPerRange = 64 << 20;
  static constexpr size_t kBytesPerPiece = 2 << 20;

  explicit RunReader(std::filesystem::path folder);

  /// Whether a run has written, or begins to write, there.
  static bool is_run(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  /// Takes in what has been written since the last call, or a part of it.
  void refresh();
  /// Only what the table of runs shows: not the ranks' files and logs. Returns
  /// how many bytes it took in.
  size_t refresh_metrics(size_t budget);
  const RunContent& content() const { return content_; }
  /// Grows whenever the content changes.
  int64_t version() const { return version_; }
  /// Of the latest start by the launcher.
  const std::vector<RunLog>& logs() const { return logs_; }
  /// How many points it keeps in memory.
  size_t num_points() const;

  /// The values of a range, read from the file again; nothing if that would
  /// take too long.
  std::optional<Metrics> read_range(const AxisRange& range) const;
  /// `time,step,name,value` for all values from `offset`, which is 0 at first,
  /// or a piece of them. Sets `offset` to the beginning of the next piece, or
  /// to nothing.
  std::string read_csv(std::optional<off_t>& offset) const;

 private:
  /// False if a file has been replaced.
  bool read_files(size_t& budget, bool is_with_ranks);
  void find_rank_files();
  /// While the middle of a file has not been read: its end.
  void look_at_end();
  void take_rank_line(std::string_view text, int rank);
  void take_main_line(std::string_view text, off_t offset);
  void take_exit(std::string_view text);
  void take_event(const RunLine& line, off_t offset);
  void take_start(const RunLine& line);
  void take_origin(const nlohmann::json& object);
  void take_configuration(const nlohmann::json& object);
  void take_values(const ValueLine& line, off_t offset, off_t end);
  void note_time(double time);
  /// What was logged for this step and later ones comes again.
  void drop_from(int64_t step, off_t offset);
  void start_over();

  std::filesystem::path folder_;
  RunContent content_;
  std::vector<RunLog> logs_;
  LineFile metrics_;
  LineFile exits_;
  std::map<int, LineFile> rank_files_;
  ValueIndex index_;
  ValueLine line_;
  /// A start has come, and no step behind it yet.
  bool is_starting_ = false;
  int64_t version_ = 0;
};

/// Adds the values of a line to `metrics`; returns how many were left out
/// because there are too many names.
int64_t add_values(Metrics& metrics, const ValueLine& line);

/// The logs that `accelerate launch --log_dir` has left in `folder` or in a
/// folder of it: those of the latest run and its last attempt.
ACCELERATE_API std::vector<RunLog> find_logs(
    const std::filesystem::path& folder);

} // namespace accelerate
