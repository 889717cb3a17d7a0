// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/output_router.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"
#include "launch/supervise/foreign_link.h"

namespace accelerate {
namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kMaxLine = 8192;
// What a program prints in two writes, text and line end, is one line still.
constexpr std::chrono::milliseconds kLineDelay{50};
constexpr int kColours[] = {36, 33, 32, 35, 34, 31};

bool are_same_terminal(int a, int b) {
  struct stat first {};
  struct stat second {};
  return isatty(a) == 1 && isatty(b) == 1 && fstat(a, &first) == 0 &&
         fstat(b, &second) == 0 && first.st_rdev == second.st_rdev;
}

void copy_window_size(int terminal) {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ||
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    ioctl(terminal, TIOCSWINSZ, &size);
  }
}

struct StreamEnds {
  UniqueFile ours;
  UniqueFile workers;
};

StreamEnds make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw SystemError(str_cat(
        "[launch] pipe: ",
        std::strerror(errno),
        "; raise the limit on open files (ulimit -n)"));
  }
  return {UniqueFile(ends[0]), UniqueFile(ends[1])};
}

StreamEnds make_terminal() {
  UniqueFile ours(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[64];
  if (!ours || grantpt(ours.get()) != 0 || unlockpt(ours.get()) != 0 ||
      ptsname_r(ours.get(), name, sizeof(name)) != 0) {
    return make_pipe(); // No /dev/pts here: a plain stream still works.
  }
  UniqueFile workers(open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!workers || tcgetattr(workers.get(), &settings) != 0) {
    return make_pipe();
  }
  // The real terminal turns line ends into carriage returns already.
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  tcsetattr(workers.get(), TCSANOW, &settings);
  copy_window_size(ours.get());
  return {std::move(ours), std::move(workers)};
}

} // namespace

struct OutputRouter::Source {
  int rank = 0;
  int stream = STDOUT_FILENO;
  bool is_helper = false;
  bool is_raw = false;
  bool is_prompt = false;
  bool is_shown = true;
  std::string prefix = {};
  UniqueFile file = {};
  std::ofstream log = {};
  std::string partial = {};
  /// Whether the start of the line is shown already, how much of `partial` is
  /// that, and the timer that shows more of it.
  bool is_open = false;
  size_t num_shown = 0;
  EventLoop::TimerId start_timer = 0;
  std::deque<std::string> last_lines = {};
};

OutputRouter::OutputRouter(EventLoop& loop, OutputOptions options)
    : loop_(loop), options_(std::move(options)) {
  out_ = std::make_unique<Console>(loop, STDOUT_FILENO);
  if (!are_same_terminal(STDOUT_FILENO, STDERR_FILENO)) {
    err_ = std::make_unique<Console>(loop, STDERR_FILENO);
  }
  const auto resume = [this] {
    for (Source* source : std::exchange(paused_, {})) {
      watch(*source);
    }
  };
  out_->on_room(resume);
  if (err_) {
    err_->on_room(resume);
  }
}

OutputRouter::~OutputRouter() {
  finish();
}

ChildStreams OutputRouter::open(int rank, bool is_first, int attempt) {
  ChildStreams streams;
  streams.inherits_input = is_first && options_.is_input_shared;
  if (options_.is_inherited) {
    return streams;
  }
  streams.out = make_stream(rank, STDOUT_FILENO, is_first, attempt);
  streams.err = make_stream(rank, STDERR_FILENO, is_first, attempt);
  return streams;
}

ChildStreams OutputRouter::open_helper(int id) {
  ChildStreams streams;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    auto ends = make_pipe();
    auto source = std::make_unique<Source>();
    source->rank = id;
    source->stream = stream;
    source->is_helper = true;
    source->file = std::move(ends.ours);
    add(std::move(source));
    (stream == STDOUT_FILENO ? streams.out : streams.err) =
        std::move(ends.workers);
  }
  return streams;
}

UniqueFile
OutputRouter::make_stream(int rank, int stream, bool is_first, int attempt) {
  auto source = std::make_unique<Source>();
  source->rank = rank;
  source->stream = stream;
  source->is_raw = is_first && console_of(stream).is_terminal();
  source->is_prompt = is_first && options_.is_prompt && !source->is_raw;
  if (options_.is_prefixed && rank != 0 && !source->is_raw) {
    source->prefix = str_cat("[rank ", rank, "] ");
    if (options_.is_coloured) {
      const int colour =
          kColours[static_cast<size_t>(rank) % std::size(kColours)];
      source->prefix = str_cat("\x1b[", colour, "m[rank ", rank, "]\x1b[0m ");
    }
  }
  if (!options_.log_dir.empty()) {
    source->is_shown = (options_.tee & (1 << (stream - 1))) != 0;
    const auto folder = options_.log_dir / str_cat("attempt_", attempt) /
                        str_cat("rank_", rank);
    const auto file =
        folder / (stream == STDOUT_FILENO ? "stdout.log" : "stderr.log");
    refuse_foreign_links(file);
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    source->log.open(file, std::ios::binary | std::ios::trunc);
    if (!source->log) {
      throw SystemError(str_cat(
          "[launch] cannot write ",
          file.string(),
          " (",
          std::strerror(errno),
          "); give --log_dir a folder that you can write to"));
    }
  }
  auto ends =
      source->is_raw && source->is_shown ? make_terminal() : make_pipe();
  source->file = std::move(ends.ours);
  add(std::move(source));
  return std::move(ends.workers);
}

void OutputRouter::add(std::unique_ptr<Source> source) {
  const int file = source->file.get();
  fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
  watch(*source);
  sources_.push_back(std::move(source));
}

void OutputRouter::watch(Source& source) {
  if (source.file) {
    loop_.watch(
        source.file.get(), POLLIN, [this, &source](short) { take(source); });
  }
}

void OutputRouter::take(Source& source) {
  if (console_of(source.stream).is_full()) {
    loop_.unwatch(source.file.get());
    paused_.push_back(&source);
    return;
  }
  char buffer[65536];
  const auto size = read(source.file.get(), buffer, sizeof(buffer));
  if (size > 0) {
    show(source, {buffer, static_cast<size_t>(size)});
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    close_source(source); // A pseudo-terminal ends with an error.
  }
}

void OutputRouter::take_all(Source& source) {
  char buffer[65536];
  ssize_t size = 0;
  while (source.file &&
         (size = read(source.file.get(), buffer, sizeof(buffer))) > 0) {
    show(source, {buffer, static_cast<size_t>(size)});
  }
}

void OutputRouter::show(Source& source, std::string_view text) {
  if (source.log.is_open()) {
    source.log << text;
    source.log.flush();
  }
  if (source.is_raw && source.is_shown) {
    console_of(source.stream).write_raw(text);
  }
  source.partial += text;
  size_t start = 0;
  for (size_t end = 0;
       (end = source.partial.find('\n', start)) != std::string::npos;
       start = end + 1) {
    show_line(
        source, std::string_view(source.partial).substr(start, end - start));
  }
  source.partial.erase(0, start);
  if (source.partial.size() > kMaxLine && source.is_prompt) {
    show_start(source);
    source.partial.clear();
    source.num_shown = 0;
  } else if (source.partial.size() > kMaxLine) {
    show_line(source, std::exchange(source.partial, {}));
  }
  if (source.is_prompt && source.start_timer == 0 &&
      source.partial.size() > source.num_shown) {
    source.start_timer =
        loop_.after(kLineDelay, [this, &source] { show_start(source); });
  }
}

void OutputRouter::show_start(Source& source) {
  loop_.cancel(std::exchange(source.start_timer, 0));
  if (!source.is_shown) {
    return;
  }
  std::string start = source.is_open ? std::string() : source.prefix;
  start += std::string_view(source.partial).substr(source.num_shown);
  source.is_open = true;
  console_of(source.stream).write_raw(start);
  // What a bar has drawn over is no part of its line any more.
  const size_t drawn = source.partial.find_last_of('\r');
  source.partial.erase(0, drawn == std::string::npos ? 0 : drawn);
  source.num_shown = source.partial.size();
}

void OutputRouter::show_line(Source& source, std::string_view line) {
  if (source.stream == STDERR_FILENO) {
    // Of a progress bar only what was drawn last is worth keeping.
    const size_t drawn =
        line.substr(0, line.find_last_not_of('\r') + 1).find_last_of('\r');
    source.last_lines.emplace_back(
        drawn == std::string_view::npos ? line : line.substr(drawn + 1));
    if (source.last_lines.size() > kLastLines) {
      source.last_lines.pop_front();
    }
  }
  loop_.cancel(std::exchange(source.start_timer, 0));
  const size_t num_shown = std::exchange(source.num_shown, 0);
  if (std::exchange(source.is_open, false)) {
    console_of(source.stream)
        .write_raw(std::string(line.substr(num_shown)) + '\n');
  } else if (source.is_shown && !source.is_raw) {
    console_of(source.stream)
        .write_line(
            source.prefix.empty() ? line : source.prefix + std::string(line));
  }
}

void OutputRouter::close_source(Source& source) {
  if (!source.file) {
    return;
  }
  loop_.unwatch(source.file.get());
  std::erase(paused_, &source);
  source.file.reset();
  if (!source.partial.empty() || source.is_open) {
    show_line(source, std::exchange(source.partial, {}));
  }
}

std::vector<std::string> OutputRouter::last_lines(int rank) {
  for (const auto& source : sources_) {
    if (source->rank == rank && source->stream == STDERR_FILENO &&
        !source->is_helper) {
      take_all(*source);
      auto& lines = source->last_lines;
      std::vector<std::string> result(lines.begin(), lines.end());
      if (!source->partial.empty()) {
        result.push_back(source->partial);
      }
      return result;
    }
  }
  return {};
}

void OutputRouter::close_workers() {
  std::erase_if(sources_, [this](const std::unique_ptr<Source>& source) {
    if (!source->is_helper) {
      take_all(*source);
      close_source(*source);
    }
    return !source->is_helper;
  });
}

void OutputRouter::finish() {
  close_workers();
  for (const auto& helper : sources_) {
    take_all(*helper);
    close_source(*helper);
  }
  sources_.clear();
  constexpr std::chrono::milliseconds kPatience{1000};
  out_->flush(kPatience);
  if (err_) {
    err_->flush(kPatience);
  }
}

void OutputRouter::say(const std::string& line) {
  console_of(STDERR_FILENO).write_line(line);
}

void OutputRouter::resize() {
  for (const auto& source : sources_) {
    if (source->is_raw && source->file) {
      copy_window_size(source->file.get());
    }
  }
}

Console& OutputRouter::console_of(int stream) {
  return stream == STDERR_FILENO && err_ ? *err_ : *out_;
}

} // namespace accelerate
