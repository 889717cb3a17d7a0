// SPDX-License-Identifier: Apache-2.0
// What a run tells its launcher: its folder, its steps, its last checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "accelerate/export.h"
#include "accelerate/process.h"
#include "base/unique_file.h"

namespace accelerate {

struct RunReport {
  /// Of the tracker whose files `accelerate watch` shows.
  std::string folder = {};
  /// Optimizer steps of this process.
  int64_t num_steps = 0;
  std::string checkpoint = {};

  bool is_empty() const {
    return folder.empty() && num_steps == 0 && checkpoint.empty();
  }
  bool operator==(const RunReport&) const = default;
};

/// Writes the report of this process into the file that the launcher named for
/// rank 0; does nothing without one. Threads may share it.
class ACCELERATE_API RunReporter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunReporter(const EnvLookup& env = system_env);
  /// That of this process. The first call reads the environment.
  static RunReporter& of_this_process();

  void set_folder(const std::filesystem::path& folder);
  void set_checkpoint(const std::filesystem::path& checkpoint);
  /// Whether steps are worth writing: once a second.
  bool is_due(Clock::time_point now) const;
  void set_steps(int64_t num_steps, Clock::time_point now = Clock::now());

 private:
  void write();

  mutable std::mutex mutex_;
  UniqueFile file_;
  Clock::time_point next_ = {};
  RunReport report_;
};

/// What was written to `file` so far; empty if that is nothing whole.
ACCELERATE_API RunReport read_run_report(int file);

} // namespace accelerate
