// SPDX-License-Identifier: Apache-2.0
// Progress bars in files.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

/// Converts text that is redrawn with carriage returns, such as progress bars,
/// into lines for a file: the bar every few seconds, and its last state. Other
/// text is unchanged.
class ACCELERATE_INTERNAL BarThinner {
 public:
  using Clock = std::chrono::steady_clock;

  /// The part of `text` to write to the file by `now`.
  std::string feed(std::string_view text, Clock::time_point now = Clock::now());
  /// The rest at the end of the text.
  std::string finish();

 private:
  bool is_line_start_ = true;
  /// After a carriage return whose next character is not known yet.
  bool is_returning_ = false;
  bool is_drawing_ = false;
  Clock::time_point last_time_ = {};
  /// What was drawn completely, and what is being drawn now.
  std::string drawn_ = {};
  std::string drawing_ = {};
};

} // namespace accelerate
