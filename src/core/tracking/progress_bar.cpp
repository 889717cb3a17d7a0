// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

#include "accelerate/process.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/utf8.h"
#include "core/tracking/screen.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr int kFallbackColumns = 80;
constexpr size_t kMinBarCells = 5;

int terminal_columns() {
  winsize size{};
  const bool known =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kFallbackColumns;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(
        text,
        sizeof(text),
        "%lld:%02lld:%02lld",
        whole / 3600,
        whole / 60 % 60,
        whole % 60);
  } else {
    std::snprintf(text, sizeof(text), "%02lld:%02lld", whole / 60, whole % 60);
  }
  return text;
}

/// Slow steps are shown as time per step.
std::string rate_text(double rate, const std::string& unit) {
  char number[32];
  const bool is_slow = rate > 0 && rate < 1;
  std::snprintf(number, sizeof(number), "%.2f", is_slow ? 1 / rate : rate);
  return str_cat(
      number, is_slow ? "s/" : unit, is_slow ? unit : std::string("/s"));
}

/// The first `columns` characters; each counts as one column.
std::string first_columns(const std::string& text, size_t columns) {
  size_t end = 0;
  for (; columns > 0 && end < text.size(); --columns) {
    end += utf8_sequence_at(text, end).length;
  }
  return text.substr(0, end);
}

/// Replaces tabs, which would be wider than the one column they are counted as.
std::string in_one_line(const std::string& text) {
  std::string line = printable(text);
  std::replace(line.begin(), line.end(), '\t', ' ');
  return line;
}

} // namespace

struct ProgressBar::State : BottomLine {
  int64_t total = 0;
  int64_t initial = 0;
  int64_t done = 0;
  bool enabled = false;
  std::optional<int> given_columns;
  std::ostream* stream = nullptr;
  std::string description;
  std::string postfix;
  std::string unit;
  Clock::time_point start = Clock::now();
  Clock::time_point last_drawn;

  std::string line(int columns) const override;
  int columns() const override {
    return given_columns ? *given_columns : terminal_columns();
  }
  std::ostream& output() const override { return *stream; }
  std::string numbers() const;
};

std::string ProgressBar::State::numbers() const {
  const double elapsed =
      std::chrono::duration<double>(Clock::now() - start).count();
  const double rate =
      elapsed > 0 ? static_cast<double>(done - initial) / elapsed : 0.0;
  std::string count = std::to_string(done);
  std::string times = clock_text(elapsed);
  if (total >= 0) {
    count += "/" + std::to_string(total);
    times += "<";
    times += rate > 0
                 ? clock_text(
                       static_cast<double>(std::max<int64_t>(total - done, 0)) /
                       rate)
                 : "?";
  }
  return str_cat(
      count,
      " [",
      times,
      ", ",
      rate_text(rate, unit),
      "]",
      postfix.empty() ? "" : " ",
      postfix);
}

std::string ProgressBar::State::line(int columns) const {
  const std::string title = description.empty() ? "" : description + ": ";
  // One column stays free, because a full line would wrap on some terminals.
  const auto width = static_cast<size_t>(std::max(columns - 1, 1));
  if (total < 0) {
    return first_columns(title + numbers(), width);
  }
  const double share =
      total > 0 ? std::clamp(
                      static_cast<double>(done) / static_cast<double>(total),
                      0.0,
                      1.0)
                : 1.0;
  char percent[8];
  std::snprintf(percent, sizeof(percent), "%3.0f%%", share * 100);
  const std::string head = title + percent + "|";
  const std::string tail = "| " + numbers();
  const size_t text = num_columns(head) + num_columns(tail);
  const size_t cells = std::max(width > text ? width - text : 0, kMinBarCells);
  const auto filled = static_cast<size_t>(share * static_cast<double>(cells));
  return first_columns(
      head + std::string(filled, '#') + std::string(cells - filled, ' ') + tail,
      width);
}

ProgressBar::ProgressBar(int64_t total, ProgressBarOptions options)
    : state_(std::make_unique<State>()) {
  state_->total = total;
  state_->initial = state_->done = options.initial;
  state_->description = in_one_line(options.description);
  state_->unit = in_one_line(options.unit);
  state_->stream = options.output != nullptr ? options.output : &std::cerr;
  state_->enabled = options.enabled ? *options.enabled
                                    : isatty(STDERR_FILENO) == 1 &&
                                          detect_topology().is_local_main();
  state_->given_columns = options.columns;
  if (state_->enabled) {
    Screen::get().add(state_.get());
    state_->last_drawn = Clock::now();
  }
}

ProgressBar::~ProgressBar() {
  if (state_ && state_->enabled) {
    Screen::get().remove(state_.get());
  }
}

ProgressBar::ProgressBar(ProgressBar&&) noexcept = default;
ProgressBar& ProgressBar::operator=(ProgressBar&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void ProgressBar::update(int64_t steps) {
  if (!state_) {
    return;
  }
  if (!state_->enabled) {
    state_->done += steps;
    return;
  }
  // Another thread's log line also draws the bar.
  const std::lock_guard lock(Screen::get().mutex());
  state_->done += steps;
  const auto now = Clock::now();
  if (now - state_->last_drawn >= kRedrawInterval ||
      state_->done == state_->total) {
    state_->last_drawn = now;
    Screen::get().redraw();
  }
}

void ProgressBar::set_postfix_text(const std::string& text) {
  const std::lock_guard lock(Screen::get().mutex());
  if (state_) {
    state_->postfix = in_one_line(text);
  }
}

void ProgressBar::set_postfix(const TrackedValues& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    value.check("set_postfix", name);
    char number[32] = "";
    if (std::holds_alternative<double>(value.get())) {
      std::snprintf(number, sizeof(number), "%.3g", *value.number());
    }
    text += str_cat(
        text.empty() ? "" : ", ",
        name,
        '=',
        number[0] != '\0' ? number : value.text());
  }
  set_postfix_text(text);
}

void ProgressBar::set_description(const std::string& text) {
  const std::lock_guard lock(Screen::get().mutex());
  if (state_) {
    state_->description = in_one_line(text);
  }
}

int64_t ProgressBar::done() const {
  return state_ ? state_->done : 0;
}
int64_t ProgressBar::total() const {
  return state_ ? state_->total : 0;
}

} // namespace accelerate
