// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/bar_thinner.h"

#include <utility>

namespace accelerate {
namespace {

constexpr std::chrono::seconds kPeriod{5};

} // namespace

std::string BarThinner::feed(std::string_view text, Clock::time_point now) {
  std::string lines;
  for (const char c : text) {
    if (std::exchange(is_returning_, false)) {
      if (c == '\n') {
        lines += is_drawing_ ? "" : "\r";
      } else if (!std::exchange(is_drawing_, true)) {
        lines += is_line_start_ ? "" : "\n";
        is_line_start_ = true;
        last_time_ = now;
      } else {
        if (!drawing_.empty()) {
          drawn_ = std::exchange(drawing_, {});
        }
        if (now - last_time_ >= kPeriod && !drawn_.empty()) {
          lines += std::exchange(drawn_, {}) + '\n';
          last_time_ = now;
        }
      }
    }
    if (c == '\r') {
      is_returning_ = true;
    } else if (c == '\n') {
      lines += is_drawing_ ? finish() : "\n";
      is_line_start_ = true;
    } else if (is_drawing_) {
      drawing_ += c;
    } else {
      lines += c;
      is_line_start_ = false;
    }
  }
  return lines;
}

std::string BarThinner::finish() {
  if (!std::exchange(is_drawing_, false)) {
    return {};
  }
  is_returning_ = false;
  is_line_start_ = true;
  const std::string old = std::exchange(drawn_, {});
  const std::string last = std::exchange(drawing_, {});
  return (last.empty() ? old : last) + '\n';
}

} // namespace accelerate
