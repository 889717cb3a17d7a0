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

/// Names and texts live as long as the line and the bytes it was parsed from.
struct ACCELERATE_INTERNAL ValueLine {
  struct Value {
    std::string_view name = {};
    /// NaN and infinities too.
    double number = 0;
    /// As it was written, without quotes.
    std::string_view text = {};
  };

  double time = 0;
  std::string_view time_text = {};
  int64_t step = 0;
  std::vector<Value> values = {};

  /// Reads a line as our trackers write it, many times as fast as the JSON
  /// library. False means that `parse_run_line` has to read it.
  bool parse_fast(std::string_view line);
  /// False if the line has no values.
  bool take(const RunLine& line);

 private:
  /// What `take` made of JSON.
  std::list<std::string> texts_;
};

} // namespace accelerate
