// SPDX-License-Identifier: Apache-2.0
// What each rank writes into a run's folder: docs/guide_observe.md has the
// schema.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "accelerate/observe/step_times.h"
#include "core/base/internal.h"
#include "core/tracking/append_file.h"

namespace accelerate {

/// Writes how one rank spends the time of its steps, and how much memory it
/// uses. It writes at most one line per second, and fewer the longer a run
/// takes, so that the file of one day has about 4 MB. If the file cannot be
/// written, one message appears on stderr, and the run continues. Used by one
/// thread.
class ACCELERATE_INTERNAL RankJournal {
 public:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    int rank = 0;
    int num_processes = 1;
    int attempt = 0;
    /// "cuda:0". Empty on a CPU.
    std::string device = {};
    /// Versions of other libraries by name, written in addition to our own.
    std::map<std::string, std::string> versions = {};
    /// Bytes of device memory in use. Empty on a CPU.
    std::function<int64_t()> device_memory = {};
    /// How many seconds the device has been busy so far. Empty if unknown.
    std::function<std::optional<double>()> device_busy = {};
  };

  /// `folder` is that of the run. Steps in `before` are not written.
  RankJournal(
      const std::filesystem::path& folder,
      Rank rank,
      const StepTimes& before);
  ~RankJournal();
  RankJournal(const RankJournal&) = delete;
  RankJournal& operator=(const RankJournal&) = delete;

  /// Whether to write a line. Call it at every step.
  bool is_due(Clock::time_point now) const { return now >= next_; }
  /// Writes the steps since the last line.
  void write(const StepTimes& times, Clock::time_point now);
  /// Writes the remaining steps, and that the rank has ended.
  void finish(const StepTimes& times);

 private:
  void write_steps(const StepTimes& times);
  void say_failure(const std::exception& error);

  std::optional<AppendFile> file_;
  Rank rank_;
  Clock::time_point begin_;
  Clock::time_point next_;
  double cpu_ = 0;
  std::optional<double> device_busy_;
  /// The steps and their times up to the last line.
  int64_t num_steps_ = 0;
  StepTimes::Phases phases_ = {};
  /// The number of steps before this journal started.
  int64_t num_before_ = 0;
};

} // namespace accelerate
