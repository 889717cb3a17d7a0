// SPDX-License-Identifier: Apache-2.0
// A line of metrics.jsonl that contains values.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"
#include "launcher/watch/json_fields.h"

namespace accelerate {

/// One line of values. Names and texts live as long as the line and the bytes
/// it was parsed from.
struct ACCELERATE_INTERNAL ValueLine {
  struct Value {
    std::string_view name = {};
    /// The value, which may be NaN or infinite.
    double number = 0;
    /// The value as it was written, without quotes.
    std::string_view text = {};
  };

  double time = 0;
  std::string_view time_text = {};
  int64_t step = 0;
  std::vector<Value> values = {};

  /// Parses a line as our trackers write it, many times as fast as the JSON
  /// library. If it returns false, the line needs `parse_run_line`.
  bool parse_fast(std::string_view line);
  /// Takes the values of a parsed line. Returns false if it has none.
  bool take(const RunLine& line);

 private:
  /// Owns the texts of values that came through `take`.
  std::list<std::string> texts_;
};

} // namespace accelerate
