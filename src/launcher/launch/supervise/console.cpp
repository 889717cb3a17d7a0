// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/console.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/str.h"

namespace accelerate {
namespace {

constexpr size_t kFullBytes = 1 << 20;
constexpr size_t kMaxKeptLine = 4096;

bool is_writable(int file) {
  pollfd waited{file, POLLOUT, 0};
  return poll(&waited, 1, 0) > 0;
}

UniqueFile reopen_pipe(int file) {
  struct stat facts {};
  if (fstat(file, &facts) != 0 || !S_ISFIFO(facts.st_mode)) {
    return {};
  }
  return UniqueFile(open(
      str_cat("/proc/self/fd/", file).c_str(),
      O_WRONLY | O_NONBLOCK | O_CLOEXEC));
}

} // namespace

Console::Console(EventLoop& loop, int file)
    : loop_(loop),
      own_(reopen_pipe(file)),
      file_(own_ ? own_.get() : file),
      is_terminal_(isatty(file) == 1) {}

Console::~Console() {
  if (is_watched_) {
    loop_.unwatch(file_);
  }
}

void Console::write_line(std::string_view line) {
  const bool is_above = is_terminal_ && !open_line_.empty();
  if (is_above) {
    kept_ += "\r\x1b[K";
  } else if (std::exchange(is_line_open_, false)) {
    kept_ += '\n'; // a pipe cannot take back what was written
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
    text.remove_prefix(1); // the newline is already there
  }
  kept_ += text;
  open_line_ += text;
  // A bar may end with a carriage return, with its text still on the screen.
  const size_t body = open_line_.find_last_not_of('\r') + 1;
  const bool is_returned = body < open_line_.size();
  const size_t start =
      std::string_view(open_line_).substr(0, body).find_last_of("\r\n") + 1;
  open_line_ = open_line_.substr(start, body - start);
  is_line_open_ = !open_line_.empty();
  if (is_returned && is_line_open_) {
    open_line_ += '\r';
  }
  if (open_line_.size() > kMaxKeptLine) {
    open_line_.clear();
  }
  write_now();
}

bool Console::is_full() const {
  return kept_.size() - num_gone_ >= kFullBytes;
}

void Console::write_now() {
  const bool was_full = is_full();
  while (!is_drained() && is_writable(file_)) {
    write_some();
  }
  if (is_drained()) {
    kept_.clear();
    num_gone_ = 0;
    if (std::exchange(is_watched_, false)) {
      loop_.unwatch(file_);
    }
  } else if (!std::exchange(is_watched_, true)) {
    loop_.watch(file_, POLLOUT, [this](short) { write_now(); });
  }
  // Whatever freed the buffer, a paused source must not wait forever.
  if (was_full && !is_full() && callbacks_.unblocked) {
    callbacks_.unblocked();
  }
  if (is_drained() && callbacks_.drained) {
    callbacks_.drained();
  }
}

void Console::write_some() {
  // A writable pipe accepts this many bytes atomically and without blocking, so
  // lines of several launchers on one pipe do not mix.
  const std::string_view left = std::string_view(kept_).substr(num_gone_);
  size_t size = std::min<size_t>(left.size(), PIPE_BUF);
  const size_t line_end = left.substr(0, size).rfind('\n');
  if (size < left.size() && line_end != std::string_view::npos) {
    size = line_end + 1;
  }
  const auto written = write(file_, left.data(), size);
  if (written >= 0) {
    num_gone_ += static_cast<size_t>(written);
    if (num_gone_ > kFullBytes) {
      kept_.erase(0, std::exchange(num_gone_, 0));
    }
  } else if (errno == EPIPE || (errno == EIO && is_terminal_)) {
    drop("the reader is gone");
  } else if (errno != EINTR && errno != EAGAIN) {
    num_lost_ += static_cast<int64_t>(left.size());
    drop(std::strerror(errno));
  }
}

void Console::drop(const std::string& cause) {
  num_gone_ = kept_.size();
  if (std::exchange(last_cause_, cause) != cause && callbacks_.lost) {
    callbacks_.lost(cause);
  }
}

} // namespace accelerate
