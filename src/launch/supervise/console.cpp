// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/console.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace accelerate {
namespace {

constexpr size_t kFullBytes = 1 << 20;
constexpr size_t kMaxOpenLine = 4096;

bool is_writable(int file, int timeout_ms) {
  pollfd waited{file, POLLOUT, 0};
  return poll(&waited, 1, timeout_ms) > 0;
}

} // namespace

Console::Console(EventLoop& loop, int file)
    : loop_(loop), file_(file), is_terminal_(isatty(file) == 1) {}

Console::~Console() {
  if (is_watched_) {
    loop_.unwatch(file_);
  }
}

void Console::write_line(std::string_view line) {
  const bool is_above = is_terminal_ && !open_line_.empty();
  if (is_above) {
    kept_ += "\r\x1b[K";
  } else if (!open_line_.empty()) {
    kept_ += '\n'; // A pipe cannot take back what it showed.
    open_line_.clear();
    is_cut_ = true;
  }
  kept_ += line;
  kept_ += '\n';
  if (is_above) {
    kept_ += open_line_;
  }
  write_now();
}

void Console::write_raw(std::string_view text) {
  if (std::exchange(is_cut_, false) && text.starts_with('\n')) {
    text.remove_prefix(1); // The end that the line has already.
  }
  kept_ += text;
  const size_t start = text.find_last_of("\r\n");
  if (start == std::string_view::npos) {
    open_line_ += text;
  } else {
    // A bar may end in a carriage return: its text is still on the screen.
    const bool ends_in_return = text[start] == '\r' && start + 1 == text.size();
    const auto rest = text.substr(start + 1);
    if (!ends_in_return) {
      open_line_ = rest;
    }
  }
  if (open_line_.size() > kMaxOpenLine) {
    open_line_.clear();
  }
  write_now();
}

bool Console::is_full() const {
  return kept_.size() >= kFullBytes;
}

void Console::flush(std::chrono::milliseconds limit) {
  const auto end = EventLoop::Clock::now() + limit;
  while (!kept_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - EventLoop::Clock::now());
    if (left.count() < 0 ||
        !is_writable(file_, static_cast<int>(left.count()))) {
      return;
    }
    write_some();
  }
}

void Console::write_now() {
  while (!kept_.empty() && is_writable(file_, 0)) {
    write_some();
  }
  if (!kept_.empty() && !is_watched_) {
    is_watched_ = true;
    loop_.watch(file_, POLLOUT, [this](short) {
      const bool was_full = is_full();
      write_some();
      if (kept_.empty()) {
        is_watched_ = false;
        loop_.unwatch(file_);
      }
      if (was_full && !is_full() && room_) {
        room_();
      }
    });
  }
}

void Console::write_some() {
  // A pipe that is writable takes this many bytes without blocking.
  const size_t size = std::min<size_t>(kept_.size(), PIPE_BUF);
  const auto written = write(file_, kept_.data(), size);
  if (written > 0) {
    kept_.erase(0, static_cast<size_t>(written));
  } else if (written < 0 && errno != EINTR && errno != EAGAIN) {
    kept_.clear(); // The reader is gone; the job goes on.
  }
}

} // namespace accelerate
