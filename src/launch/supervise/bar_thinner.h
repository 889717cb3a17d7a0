// SPDX-License-Identifier: Apache-2.0
// Progress bars in files.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

/// Turns text that is drawn over with carriage returns, as progress bars are,
/// into lines for a file: the bar as it is every few seconds, and its last
/// state. Other text passes through unchanged.
class ACCELERATE_API BarThinner {
 public:
  using Clock = std::chrono::steady_clock;

  /// What of `text` belongs in the file by `now`.
  std::string feed(std::string_view text, Clock::time_point now = Clock::now());
  /// What is left when the text has ended.
  std::string finish();

 private:
  bool is_line_start_ = true;
  /// A carriage return came whose next character is not known yet.
  bool is_returning_ = false;
  bool is_drawing_ = false;
  Clock::time_point last_time_ = {};
  /// What was drawn completely, and what is being drawn now.
  std::string drawn_ = {};
  std::string drawing_ = {};
};

} // namespace accelerate
