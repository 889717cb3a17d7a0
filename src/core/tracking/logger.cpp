// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/logger.h"

#include <algorithm>
#include <iostream>
#include <mutex>
#include <set>

#include "accelerate/error.h"
#include "core/base/plain_text.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"

namespace accelerate {
namespace {

constexpr const char* kLevelNames[] =
    {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};

LogLevel level_of(const std::string& given) {
  const auto found = std::find(
      std::begin(kLevelNames), std::end(kLevelNames), upper_case(given));
  if (found == std::end(kLevelNames)) {
    throw ConfigError(str_cat(
        "[Logger] ",
        variables::kLogLevel,
        " is '",
        printable(given),
        "', expected DEBUG, INFO, WARNING, ERROR or CRITICAL"));
  }
  return static_cast<LogLevel>(found - std::begin(kLevelNames));
}

/// A value must not be able to imitate another line, or move the cursor.
std::string with_indented_lines(const std::string& text) {
  std::string lines = printable(text, LineEnds::kKept);
  for (size_t end = lines.find('\n'); end < lines.size() - 1;
       end = lines.find('\n', end + 1)) {
    lines.insert(end + 1, "    ");
  }
  return lines;
}

} // namespace

Logger::Logger(std::string name, LoggerOptions options)
    : name_(std::move(name)),
      topology_(options.topology ? *options.topology : detect_topology()),
      output_(options.output != nullptr ? options.output : &std::cerr) {
  if (options.level) {
    level_ = *options.level;
  } else if (const auto given = system_env(variables::kLogLevel)) {
    level_ = level_of(*given);
  }
}

bool Logger::is_enabled(LogLevel level) const {
  return level >= level_ && (on_every_process_ || topology_.is_main());
}

Logger Logger::on_every_process() const {
  Logger logger = *this;
  logger.on_every_process_ = true;
  return logger;
}

void Logger::write(LogLevel level, const std::string& text) const {
  print_line(
      *output_,
      str_cat(
          "[RANK ",
          topology_.rank,
          "] ",
          kLevelNames[static_cast<int>(level)],
          ' ',
          printable(name_),
          ": ",
          with_indented_lines(text)));
}

void Logger::write_once(LogLevel level, const std::string& text) const {
  static std::mutex mutex;
  static std::set<std::string> said;
  {
    const std::lock_guard lock(mutex);
    if (!said.insert(str_cat(topology_.rank, ' ', name_, ' ', text)).second) {
      return;
    }
  }
  write(level, text);
}

} // namespace accelerate
