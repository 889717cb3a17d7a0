// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl in a run's folder: docs/guide_observe.md has its schema. The
// C++ tracker and the Python one both write through this class.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/internal.h"
#include "core/tracking/append_file.h"

namespace accelerate {

struct TrackedRun;

/// Each function writes one complete line, or throws `SystemError` and writes
/// nothing. Values are JSON objects without nested objects.
class ACCELERATE_INTERNAL MetricsFile {
 public:
  /// Creates the file if missing. Removes a line that a killed process has left
  /// incomplete.
  explicit MetricsFile(const std::filesystem::path& path);

  void start(const TrackedRun& run);
  void store_configuration(const nlohmann::ordered_json& values);
  void log(const nlohmann::ordered_json& values, int64_t step);
  void mark(const std::string& event, int64_t step);
  void finish();

 private:
  void write(const nlohmann::ordered_json& fields);

  AppendFile file_;
};

} // namespace accelerate
