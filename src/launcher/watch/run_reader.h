// SPDX-License-Identifier: Apache-2.0
// The contents of a run folder, read while the run writes to it.
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

#include "core/base/internal.h"
#include "core/tracking/run_folder.h"
#include "launcher/watch/json_fields.h"
#include "launcher/watch/line_file.h"
#include "launcher/watch/thinned.h"
#include "launcher/watch/value_index.h"
#include "launcher/watch/value_line.h"

namespace accelerate {

/// A value as it was logged, including NaN and infinities.
struct LoggedValue {
  int64_t step = 0;
  /// Seconds since 1970.
  double time = 0;
  double value = 0;
};

/// Values of one metric at consecutive steps.
struct MetricPoint {
  int64_t first_step = 0;
  int64_t last_step = 0;
  /// Seconds since 1970.
  double begin = 0;
  double end = 0;
  /// The number of all values. The fields below describe only the finite ones.
  int64_t count = 1;
  int64_t num_finite = 0;
  double low = 0;
  double high = 0;
  int64_t low_step = 0;
  int64_t high_step = 0;
  double sum = 0;
  /// The numbers of NaN, infinity and -infinity, and the step of the first such
  /// value.
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
  /// The latest value. Empty if a resume discarded it.
  std::optional<LoggedValue> last = {};

  void add(const LoggedValue& logged);
};
using Metrics = std::map<std::string, Metric, std::less<>>;

/// How the run ended, as recorded by the launcher.
struct RunExit {
  double time = 0;
  int exit_code = 0;
  /// The process that failed first. Empty if the job was interrupted.
  std::optional<int> rank = {};
  std::string host = {};
  /// "failed with exit code 1"
  std::string how = {};
  /// The error, such as "ValueError: bad batch". May be empty.
  std::string error = {};
};

/// The steps of one rank in an interval of time.
struct RankPoint {
  double begin = 0;
  double end = 0;
  double steps = 0;
  /// Total seconds of these steps, by phase.
  std::array<double, kPhaseNames.size()> phases = {};
  /// The peak in bytes. 0 if unknown.
  double memory = 0;
  double device_memory = 0;
  /// CPU seconds, and seconds during which the device was busy.
  double cpu = 0;
  double device_busy = 0;
  int64_t count = 1;

  void merge(const RankPoint& next);
};

/// Consecutive lines of a rank's file, and the interval that they describe.
struct RankLines {
  off_t from = 0;
  off_t to = 0;
  double begin = 0;
  double end = 0;
  int64_t count = 1;

  void merge(const RankLines& next);
};

struct RankSeries {
  static constexpr size_t kMaxPoints = 600;
  static constexpr size_t kMaxLines = 128;
  Thinned<RankPoint> points{kMaxPoints};
  /// The lines of the file from which parts of the series can be read again.
  Thinned<RankLines> lines{kMaxLines};
  std::string host = {};
  std::string device = {};
  int64_t step = 0;
  /// The time of the latest line.
  double time = 0;

  /// Takes the values of a line.
  void add(const RunLine& line, const nlohmann::json& values);
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
  /// The number of values left out because there are too many names.
  int64_t num_left_out = 0;
  /// The number of lines of metrics.jsonl that are neither values nor events.
  int64_t num_damaged = 0;
  std::map<int, RankSeries> ranks = {};
  /// The latest marks, oldest first.
  std::vector<RunMark> marks = {};
  std::vector<std::pair<std::string, std::string>> configuration = {};
  /// The origin of the latest start of rank 0: command line, commit, versions.
  std::vector<std::pair<std::string, std::string>> origin = {};
  /// The latest step with a logged value.
  std::optional<int64_t> step = {};
  int64_t num_processes = 0;
  int64_t attempt = 0;
  std::string host = {};
  /// The times of the first and the latest line. 0 if there are no lines.
  double begin = 0;
  double end = 0;
  bool is_finished = false;
  /// Whether the last line of a partly read file says that the run finished.
  bool ends_finished = false;
  /// The time of the latest start.
  double start_time = 0;
  /// The latest exit. It is valid only if nothing has started since.
  std::optional<RunExit> last_exit = {};
  /// Whether parts of the files have not been read yet.
  bool is_behind = false;

  const RunExit* exit() const {
    // Later starts may be unread, so only an exit after the last line counts.
    const double least = is_behind ? end : start_time;
    return last_exit && last_exit->time >= least ? &*last_exit : nullptr;
  }
};

class ACCELERATE_INTERNAL RunReader {
 public:
  static constexpr size_t kMaxMetrics = kMaxWatchedMetrics;
  static constexpr size_t kMaxMarks = 400;
  static constexpr size_t kMaxRanks = 4096;
  /// Keeps a refresh short, because requests wait for it.
  static constexpr size_t kBytesPerRefresh = 16 << 20;
  /// Limits for a range of steps or times, and for a piece of CSV, that are
  /// read from files again.
  static constexpr size_t kBytesPerRange = 64 << 20;
  static constexpr size_t kRankBytesPerRange = 16 << 20;
  static constexpr size_t kBytesPerPiece = 2 << 20;

  explicit RunReader(std::filesystem::path folder);

  /// Whether a run has written to the folder, or has begun to.
  static bool is_run(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  /// Reads what was written since the last call, or a part of it.
  void refresh();
  /// Like `refresh`, but without the ranks' files and logs, which the table of
  /// runs does not show. Returns the number of bytes read.
  size_t refresh_metrics(size_t budget);
  const RunContent& content() const { return content_; }
  /// Grows whenever the content changes.
  int64_t version() const { return version_; }
  /// The logs of the latest start by the launcher.
  const std::vector<RunLog>& logs() const { return logs_; }
  /// The number of points in memory.
  size_t num_points() const;

  /// The values of a range, read from the file again. Empty if that would take
  /// too long.
  std::optional<Metrics> read_range(const AxisRange& range) const;
  /// The points of all ranks between two times in seconds since 1970, read from
  /// their files again. Empty if that would take too long.
  std::optional<std::map<int, RankSeries>> read_ranks(double from, double to)
      const;
  /// A piece of the CSV `time,step,name,value` that begins with the values at
  /// `offset`. Start with 0. Sets `offset` to the start of the next piece, or
  /// clears it after the last one.
  std::string read_csv(std::optional<off_t>& offset) const;

 private:
  /// Returns false if a file was replaced.
  bool read_files(size_t& budget, bool is_with_ranks);
  void find_rank_files();
  /// Reads the end of a file whose middle has not been read yet.
  void look_at_end();
  void take_rank_line(std::string_view text, int rank, off_t offset);
  void take_main_line(std::string_view text, off_t offset);
  void take_exit(std::string_view text);
  void take_event(const RunLine& line, off_t offset);
  void take_start(const RunLine& line);
  void take_origin(const nlohmann::json& object);
  void take_configuration(const nlohmann::json& object);
  void take_values(const ValueLine& line, off_t offset, off_t end);
  void note_time(double time);
  /// Drops values of this and later steps, which the run will log again.
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
  /// Whether a start was read, but no step after it.
  bool is_starting_ = false;
  int64_t version_ = 0;
};

/// Adds the values of a line to `metrics`. Returns the number of values left
/// out because there are too many names.
int64_t add_values(Metrics& metrics, const ValueLine& line);

/// The logs of `accelerate launch --log_dir` in `folder` or its subfolders:
/// those of the last attempt of the latest run.
ACCELERATE_INTERNAL std::vector<RunLog> find_logs(
    const std::filesystem::path& folder);

} // namespace accelerate
