// SPDX-License-Identifier: Apache-2.0
// Log lines of a run of several processes.
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
  /// Lines below it are left out. Where it is not given, ACCELERATE_LOG_LEVEL
  /// says it (DEBUG, INFO, WARNING, ERROR or CRITICAL), else it is `kInfo`.
  std::optional<LogLevel> level = {};
  /// Where this process sits, as the environment has it by default. Ranks that
  /// are threads of one process must give it.
  std::optional<ProcessTopology> topology = {};
  /// Where lines go; stderr by default. Borrowed: it must outlive the logger.
  std::ostream* output = nullptr;
};

/// Writes `[RANK 0] INFO name: text`, by default on the main process alone.
/// Each line is written whole, and progress bars stay below it. Further lines
/// of a text are indented, and control characters are shown as `\x1b`, so that
/// no value can forge a line or move the cursor. Thread safe; copies are cheap.
///
///     const accelerate::Logger logger("train");
///     logger.info("loss ", loss, " after ", step, " steps");
///     logger.on_every_process().warning("my disk is full");
///     logger.warning_once("slow path");
///     logger.in_order(accelerator, "samples: ", step);
class ACCELERATE_API Logger {
 public:
  /// Throws `ConfigError` on a level that there is not.
  explicit Logger(std::string name, LoggerOptions options = {});

  /// Whether a line of this level is written by this process.
  bool is_enabled(LogLevel level) const;
  LogLevel level() const { return level_; }

  /// The values, one after the other.
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
  /// A warning that this process writes the first time only.
  template <class... Values>
  void warning_once(const Values&... values) const {
    if (is_enabled(LogLevel::kWarning)) {
      write_once(LogLevel::kWarning, text_of(values...));
    }
  }

  /// The same logger, which writes on all processes.
  Logger on_every_process() const;
  /// An info line of each process, in the order of ranks. `processes` is an
  /// `Accelerator` or what has its `wait_for_everyone`; a collective.
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

/// Writes a line whole, above the progress bars that are drawn on the same
/// terminal. Thread safe.
ACCELERATE_API void print_line(std::ostream& output, const std::string& line);

} // namespace accelerate
