// SPDX-License-Identifier: Apache-2.0
// What a run reports to its launcher: its folder, its steps, its last
// checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

struct RunReport {
  /// The folder of the tracker that `accelerate watch` shows.
  std::string folder = {};
  /// Optimizer steps of this process.
  int64_t num_steps = 0;
  std::string checkpoint = {};

  bool is_empty() const {
    return folder.empty() && num_steps == 0 && checkpoint.empty();
  }
  bool operator==(const RunReport&) const = default;
};

/// Writes the report of this process into the file that the launcher has
/// created for rank 0. Does nothing if the file does not exist. Thread-safe.
class ACCELERATE_INTERNAL RunReporter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunReporter(const EnvLookup& env = system_env);
  /// The reporter of this process. The first call reads the environment.
  static RunReporter& of_this_process();

  void set_folder(const std::filesystem::path& folder);
  void set_checkpoint(const std::filesystem::path& checkpoint);
  /// Whether to write the number of steps again, which happens once a second.
  bool is_due(Clock::time_point now) const;
  void set_steps(int64_t num_steps, Clock::time_point now = Clock::now());

 private:
  void write();

  mutable std::mutex mutex_;
  UniqueFile file_;
  Clock::time_point next_ = {};
  RunReport report_;
};

/// The latest report in `file`. Empty if it contains no complete one.
ACCELERATE_INTERNAL RunReport read_run_report(int file);

} // namespace accelerate
