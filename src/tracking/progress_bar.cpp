// SPDX-License-Identifier: Apache-2.0
#include "accelerate/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

#include "accelerate/process.h"

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

} // namespace

struct ProgressBar::State {
  int64_t total = 0;
  int64_t done = 0;
  bool enabled = false;
  bool is_drawn = false;
  int columns = kFallbackColumns;
  std::ostream* output = nullptr;
  std::string description;
  std::string postfix;
  Clock::time_point start = Clock::now();
  Clock::time_point last_drawn;

  void draw();
  std::string numbers() const;
};

std::string ProgressBar::State::numbers() const {
  const double elapsed =
      std::chrono::duration<double>(Clock::now() - start).count();
  const double rate = elapsed > 0 ? static_cast<double>(done) / elapsed : 0.0;
  std::string left = "?";
  if (rate > 0) {
    left = clock_text(
        static_cast<double>(std::max<int64_t>(total - done, 0)) / rate);
  }
  char speed[32];
  std::snprintf(speed, sizeof(speed), "%.2f it/s", rate);
  return " " + std::to_string(done) + "/" + std::to_string(total) + " [" +
         clock_text(elapsed) + "<" + left + ", " + speed + "]" +
         (postfix.empty() ? "" : " " + postfix);
}

void ProgressBar::State::draw() {
  const double share =
      total > 0 ? std::clamp(
                      static_cast<double>(done) / static_cast<double>(total),
                      0.0,
                      1.0)
                : 1.0;
  char percent[8];
  std::snprintf(percent, sizeof(percent), "%3.0f%%", share * 100);
  const std::string head =
      (description.empty() ? "" : description + ": ") + percent + "|";
  const std::string tail = "|" + numbers();
  // One column stays free: a full line would wrap on some terminals.
  const auto room = static_cast<size_t>(std::max(columns - 1, 0));
  const size_t text = head.size() + tail.size();
  const size_t cells = std::max(room > text ? room - text : 0, kMinBarCells);
  const auto filled = static_cast<size_t>(share * static_cast<double>(cells));
  const std::string line =
      head + std::string(filled, '#') + std::string(cells - filled, ' ') + tail;
  // \033[K clears what a longer earlier line left behind.
  *output << '\r' << line.substr(0, std::max(room, size_t{1})) << "\033[K"
          << std::flush;
  is_drawn = true;
  last_drawn = Clock::now();
}

ProgressBar::ProgressBar(int64_t total, ProgressBarOptions options)
    : state_(std::make_unique<State>()) {
  state_->total = total;
  state_->description = std::move(options.description);
  state_->output = options.output != nullptr ? options.output : &std::cerr;
  state_->enabled = options.enabled ? *options.enabled
                                    : isatty(STDERR_FILENO) == 1 &&
                                          detect_topology().is_local_main();
  state_->columns = options.columns ? *options.columns : terminal_columns();
  if (state_->enabled) {
    state_->draw();
  }
}

ProgressBar::~ProgressBar() {
  if (state_ && state_->is_drawn) {
    state_->draw();
    *state_->output << '\n' << std::flush;
  }
}

ProgressBar::ProgressBar(ProgressBar&&) noexcept = default;
ProgressBar& ProgressBar::operator=(ProgressBar&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

void ProgressBar::update(int64_t steps) {
  state_->done += steps;
  if (!state_->enabled) {
    return;
  }
  const bool is_due = Clock::now() - state_->last_drawn >= kRedrawInterval;
  if (is_due || state_->done == state_->total) {
    state_->draw();
  }
}

void ProgressBar::set_postfix(std::string text) {
  state_->postfix = std::move(text);
}

int64_t ProgressBar::done() const {
  return state_->done;
}
int64_t ProgressBar::total() const {
  return state_->total;
}

} // namespace accelerate
