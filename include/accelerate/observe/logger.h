// SPDX-License-Identifier: Apache-2.0
// Logging in runs with several processes.
#pragma once

#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kCritical };

struct ACCELERATE_API LoggerOptions {
  /// Skip lines below this level. Default: ACCELERATE_LOG_LEVEL (DEBUG, INFO,
  /// WARNING, ERROR or CRITICAL), or `kInfo`.
  std::optional<LogLevel> level = {};
  /// The rank of this process. Default: read from the environment. Required if
  /// ranks are threads of one process.
  std::optional<ProcessTopology> topology = {};
  /// The stream that lines are written to. Default: stderr. It must outlive the
  /// logger.
  std::ostream* output = nullptr;
};

/// Writes lines such as `[RANK 0] INFO name: text`, by default only on the main
/// process. Each line is written atomically, above any progress bars.
/// Additional lines of a text are indented, and control characters are shown as
/// `\x1b`, so that a value cannot forge a line or move the cursor. Loggers are
/// thread-safe and cheap to copy.
///
///     const accelerate::Logger logger("train");
///     logger.info("loss ", loss, " after ", step, " steps");
///     logger.on_every_process().warning("my disk is full");
///     logger.warning_once("slow path");
///     logger.in_order(accelerator, "samples: ", step);
class ACCELERATE_API Logger {
 public:
  /// Throws `ConfigError` if ACCELERATE_LOG_LEVEL is not a known level.
  explicit Logger(std::string name, LoggerOptions options = {});

  /// Whether this process writes lines of this level.
  bool is_enabled(LogLevel level) const;
  LogLevel level() const { return level_; }

  /// Logs the concatenated values.
  template <class... Values>
  void log(LogLevel level, const Values&... values) const {
    if (is_enabled(level)) {
      write(level, text_of(values...));
    }
  }
  template <class... Values>
  void debug(const Values&... values) const {
    log(LogLevel::kDebug, values...);
  }
  template <class... Values>
  void info(const Values&... values) const {
    log(LogLevel::kInfo, values...);
  }
  template <class... Values>
  void warning(const Values&... values) const {
    log(LogLevel::kWarning, values...);
  }
  template <class... Values>
  void error(const Values&... values) const {
    log(LogLevel::kError, values...);
  }
  template <class... Values>
  void critical(const Values&... values) const {
    log(LogLevel::kCritical, values...);
  }
  /// Logs a warning that this process writes only once.
  template <class... Values>
  void warning_once(const Values&... values) const {
    if (is_enabled(LogLevel::kWarning)) {
      write_once(LogLevel::kWarning, text_of(values...));
    }
  }

  /// Returns the same logger, except that it writes on all processes.
  Logger on_every_process() const;
  /// Logs an info line from each process, in rank order. `processes` is an
  /// `Accelerator` or another object with `wait_for_everyone`. Collective.
  template <class Processes, class... Values>
  void in_order(Processes& processes, const Values&... values) const {
    const Logger everyone = on_every_process();
    for (int rank = 0; rank < processes.num_processes(); ++rank) {
      if (rank == processes.process_index()) {
        everyone.info(values...);
      }
      processes.wait_for_everyone();
    }
  }

 private:
  template <class... Values>
  static std::string text_of(const Values&... values) {
    std::ostringstream text;
    (text << ... << values);
    return text.str();
  }
  void write(LogLevel level, const std::string& text) const;
  void write_once(LogLevel level, const std::string& text) const;

  std::string name_;
  LogLevel level_ = LogLevel::kInfo;
  ProcessTopology topology_;
  bool on_every_process_ = false;
  std::ostream* output_ = nullptr;
};

/// Writes a line atomically, above the progress bars on the same terminal.
/// Thread-safe.
ACCELERATE_API void print_line(std::ostream& output, const std::string& line);

} // namespace accelerate
