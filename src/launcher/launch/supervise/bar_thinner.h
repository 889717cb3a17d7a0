// SPDX-License-Identifier: Apache-2.0
// Progress bars in files.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

/// Converts text that is redrawn with carriage returns, such as progress bars,
/// into lines for a file: one line every few seconds, and the last state of the
/// bar. Other text is unchanged.
class ACCELERATE_INTERNAL BarThinner {
 public:
  using Clock = std::chrono::steady_clock;

  /// Adds `text`. Returns what to write to the file at the time `now`.
  std::string feed(std::string_view text, Clock::time_point now = Clock::now());
  /// Ends the text. Returns the rest to write.
  std::string finish();

 private:
  bool is_line_start_ = true;
  /// Whether the last character was a carriage return. Its meaning depends on
  /// the next character.
  bool is_returning_ = false;
  bool is_drawing_ = false;
  Clock::time_point last_time_ = {};
  /// The last complete drawing, and the one in progress.
  std::string drawn_ = {};
  std::string drawing_ = {};
};

} // namespace accelerate
