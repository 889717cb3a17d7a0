// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/output_router.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/launch/supervise/bar_thinner.h"
#include "launcher/launch/supervise/error_report.h"
#include "launcher/launch/supervise/log_file.h"

namespace accelerate {
namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kMaxLine = 1 << 20;
constexpr std::string_view kGoesOn = " [the line continues]";
// The maximum length of a prompt line: a bar that is always redrawn has no line
// end.
constexpr size_t kMaxOpenLine = 8192;
// Text and line end written separately still form one line.
constexpr std::chrono::milliseconds kLineDelay{50};
constexpr int kPipeBytes = 1 << 16;
// How long the report of an error is held back: at most, and if the process
// keeps writing.
constexpr std::chrono::seconds kReportDelay{5};
constexpr std::chrono::seconds kReportPause{2};
constexpr size_t kMaxReport = 1 << 18;
constexpr int kColours[] = {36, 33, 32, 35, 34, 31};

bool are_same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

void copy_window_size(int terminal) {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ||
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    ioctl(terminal, TIOCSWINSZ, &size);
  }
}

// "2026-01-31 23:59:59.123 ", in UTC, so that machines agree.
std::string time_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now);
  const time_t seconds = static_cast<time_t>(ms.count() / 1000);
  tm utc{};
  gmtime_r(&seconds, &utc);
  char day[32];
  strftime(day, sizeof(day), "%Y-%m-%d %H:%M:%S", &utc);
  char text[48];
  std::snprintf(
      text, sizeof(text), "%s.%03d ", day, static_cast<int>(ms.count() % 1000));
  return text;
}

// The last state of a progress bar in a line. Earlier states are not kept.
std::string_view drawn_last(std::string_view line) {
  const size_t drawn =
      line.substr(0, line.find_last_not_of('\r') + 1).find_last_of('\r');
  return drawn == line.npos ? line : line.substr(drawn + 1);
}

struct StreamEnds {
  UniqueFile ours;
  UniqueFile workers;
};

StreamEnds make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw SystemError(str_cat(
        "[launch] cannot create a pipe (",
        std::strerror(errno),
        "); raise the limit on open files (ulimit -n)"));
  }
  return {UniqueFile(ends[0]), UniqueFile(ends[1])};
}

StreamEnds make_terminal() {
  UniqueFile ours(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[64];
  if (!ours || grantpt(ours.get()) != 0 || unlockpt(ours.get()) != 0 ||
      ptsname_r(ours.get(), name, sizeof(name)) != 0) {
    return make_pipe(); // no /dev/pts here; a pipe still works
  }
  UniqueFile workers(open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings{};
  if (!workers || tcgetattr(workers.get(), &settings) != 0) {
    return make_pipe();
  }
  // The real terminal already adds carriage returns to line ends.
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
  std::optional<LogFile> log = {};
  std::string partial = {};
  /// Whether the start of the line is already shown, how many bytes of
  /// `partial` that includes, and the timer that shows more of them.
  bool is_open = false;
  size_t num_shown = 0;
  EventLoop::TimerId start_timer = 0;
  std::deque<std::string> last_lines = {};
  BarThinner thinner = {};
  /// A possible error report of the worker: lines are added to it while it is
  /// open, and it is not shown while it is held back.
  std::vector<std::string> report = {};
  size_t report_bytes = 0;
  bool is_report_open = false;
  bool is_held = false;
  EventLoop::TimerId report_timer = 0;
  EventLoop::Clock::time_point report_time = {};
};

OutputRouter::OutputRouter(
    EventLoop& loop,
    OutputOptions options,
    int out,
    int err)
    : loop_(loop), options_(std::move(options)) {
  out_ = std::make_unique<Console>(loop, out);
  if (!are_same_file(out, err)) {
    err_ = std::make_unique<Console>(loop, err);
  }
  const auto resume = [this] {
    for (Source* source : std::exchange(paused_, {})) {
      watch(*source);
    }
  };
  const auto drained = [this] { look_whether_done(); };
  out_->on({resume, drained, [this](const std::string& cause) {
              if (err_) {
                say(str_cat(
                    "[launch] cannot write to standard output (",
                    cause,
                    "); the job continues without it"));
              }
            }});
  if (err_) {
    err_->on({resume, drained, [](const std::string&) {}});
  }
}

OutputRouter::~OutputRouter() {
  for (const auto& source : sources_) {
    close_source(*source);
    release(*source);
  }
}

ChildStreams OutputRouter::open(
    int rank,
    int local_rank,
    const std::filesystem::path& log_folder) {
  ChildStreams streams;
  streams.inherits_input = local_rank == 0 && options_.is_input_shared;
  if (options_.is_inherited) {
    return streams;
  }
  streams.out = make_stream(rank, local_rank, STDOUT_FILENO, log_folder);
  streams.err = make_stream(rank, local_rank, STDERR_FILENO, log_folder);
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

UniqueFile OutputRouter::make_stream(
    int rank,
    int local_rank,
    int stream,
    const std::filesystem::path& log_folder) {
  auto source = std::make_unique<Source>();
  source->rank = rank;
  source->stream = stream;
  const bool is_first = local_rank == 0;
  // A time before each line would break a progress bar.
  source->is_raw =
      is_first && console_of(stream).is_terminal() && !options_.is_timed;
  source->is_prompt = is_first && options_.is_prompt && !source->is_raw;
  if (options_.is_prefixed && rank != 0 && !source->is_raw) {
    source->prefix = str_cat("[rank ", rank, "] ");
    if (options_.is_coloured) {
      const int colour =
          kColours[static_cast<size_t>(rank) % std::size(kColours)];
      source->prefix = str_cat("\x1b[", colour, "m[rank ", rank, "]\x1b[0m ");
    }
  }
  source->is_shown = options_.shown_local_ranks.empty() ||
                     options_.shown_local_ranks.contains(local_rank);
  if (!options_.log_dir.empty()) {
    source->is_shown = source->is_shown &&
                       (options_.tee.of(local_rank) & (1 << (stream - 1))) != 0;
    source->log.emplace(
        log_folder / (stream == STDOUT_FILENO ? "stdout.log" : "stderr.log"),
        options_.log_bytes,
        [this](const std::string& line) { say(line); });
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
  if (source.is_shown && console_of(source.stream).is_full()) {
    loop_.unwatch(source.file.get());
    paused_.push_back(&source);
    return;
  }
  const auto size = read(source.file.get(), buffer_.data(), buffer_.size());
  if (size > 0) {
    show(source, {buffer_.data(), static_cast<size_t>(size)});
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    close_source(source); // reading a closed pseudo-terminal fails
  }
}

void OutputRouter::take_all(Source& source) {
  // Output written before this call fits in the pipe. The limit prevents a
  // process that keeps writing from blocking this loop.
  ssize_t left = std::max(fcntl(source.file.get(), F_GETPIPE_SZ), kPipeBytes);
  ssize_t size = 0;
  while (source.file && left > 0 &&
         (size = read(source.file.get(), buffer_.data(), buffer_.size())) > 0) {
    show(source, {buffer_.data(), static_cast<size_t>(size)});
    left -= size;
  }
}

void OutputRouter::show(Source& source, std::string_view text) {
  const std::string thinned = source.thinner.feed(text);
  if (source.log && !options_.is_timed) {
    source.log->write(thinned);
  }
  route(source, source.is_raw || source.is_prompt ? text : thinned);
}

void OutputRouter::release_if_alive(int rank) {
  Source* source = find_stderr(rank);
  if (source != nullptr && source->is_report_open && !is_ending_ &&
      EventLoop::Clock::now() - source->report_time > kReportPause) {
    release(*source);
  }
}

void OutputRouter::route(Source& source, std::string_view text) {
  if (!source.is_helper) {
    release_if_alive(source.rank);
  }
  if (source.is_raw && source.is_shown && !source.is_held) {
    const size_t report =
        source.stream == STDERR_FILENO && !options_.shows_all_errors
            ? find_error_report(text)
            : text.npos;
    console_of(source.stream).write_raw(text.substr(0, report));
    if (report != text.npos) {
      split(source, text.substr(0, report));
      if (!source.partial.empty()) {
        console_of(source.stream).write_raw("\n"); // it was drawing a bar
        take_line(source, std::exchange(source.partial, {}));
      }
      begin_report(source);
      text.remove_prefix(report);
    }
  }
  split(source, text);
  if (source.is_prompt && !source.is_held) {
    if (source.partial.size() > kMaxOpenLine) {
      show_start(source);
      source.partial.clear();
      source.num_shown = 0;
    } else if (
        source.start_timer == 0 && source.partial.size() > source.num_shown) {
      source.start_timer =
          loop_.after(kLineDelay, [this, &source] { show_start(source); });
    }
  }
}

void OutputRouter::split(Source& source, std::string_view text) {
  size_t searched = source.partial.size();
  source.partial += text;
  size_t start = 0;
  for (size_t end = 0;
       (end = source.partial.find('\n', searched)) != std::string::npos;
       start = searched = end + 1) {
    take_line(
        source, std::string_view(source.partial).substr(start, end - start));
  }
  source.partial.erase(0, start);
  if (source.partial.size() > kMaxLine) {
    take_line(source, std::exchange(source.partial, {}).append(kGoesOn));
  }
}

void OutputRouter::take_line(Source& source, std::string_view line) {
  if (source.log && options_.is_timed) {
    source.log->write(str_cat(time_now(), drawn_last(line), '\n'));
  }
  if (source.is_helper || source.stream != STDERR_FILENO) {
    show_line(source, line);
    return;
  }
  const std::string_view own = without_rank(drawn_last(line), source.rank);
  source.last_lines.emplace_back(own);
  if (source.last_lines.size() > kLastLines) {
    source.last_lines.pop_front();
  }
  const size_t report =
      source.is_report_open ? own.npos : find_error_report(own);
  if (report != own.npos) {
    if (report > 0) {
      show_line(source, line.substr(0, line.size() - own.size() + report));
    }
    begin_report(source);
    line.remove_prefix(line.size() - own.size() + report);
  } else if (!source.is_report_open) {
    source.report.clear(); // its worker kept writing, so it was not fatal
  }
  if (source.is_report_open) {
    source.report.emplace_back(without_rank(drawn_last(line), source.rank));
    source.report_bytes += line.size();
    if (source.is_held) {
      if (source.report_bytes > kMaxReport) {
        release(source);
      }
      return;
    }
  }
  show_line(source, line);
}

void OutputRouter::begin_report(Source& source) {
  source.report.clear();
  source.report_bytes = 0;
  source.is_report_open = true;
  source.is_held = !options_.shows_all_errors;
  source.report_time = EventLoop::Clock::now();
  loop_.cancel(source.report_timer);
  source.report_timer = loop_.after(kReportDelay, [this, &source] {
    source.report_timer = 0;
    if (!is_ending_) {
      release(source);
    }
  });
}

void OutputRouter::release(Source& source) {
  loop_.cancel(std::exchange(source.report_timer, 0));
  source.is_report_open = false;
  if (!std::exchange(source.is_held, false)) {
    return;
  }
  for (const std::string& line : source.report) {
    if (source.is_raw && source.is_shown) {
      console_of(source.stream).write_raw(line + '\n');
    } else {
      show_line(source, line);
    }
  }
  if (source.is_raw && source.is_shown) {
    console_of(source.stream).write_raw(source.partial);
  }
}

void OutputRouter::show_start(Source& source) {
  loop_.cancel(std::exchange(source.start_timer, 0));
  if (!source.is_shown) {
    return;
  }
  std::string start =
      source.is_open ? std::string() : time_if_wanted() + source.prefix;
  start += std::string_view(source.partial).substr(source.num_shown);
  source.is_open = true;
  console_of(source.stream).write_raw(start);
  // Parts of a bar that were overwritten do not belong to its line.
  const size_t drawn = source.partial.find_last_of('\r');
  source.partial.erase(0, drawn == std::string::npos ? 0 : drawn);
  source.num_shown = source.partial.size();
}

void OutputRouter::show_line(Source& source, std::string_view line) {
  loop_.cancel(std::exchange(source.start_timer, 0));
  const size_t num_shown = std::exchange(source.num_shown, 0);
  if (std::exchange(source.is_open, false)) {
    console_of(source.stream)
        .write_raw(std::string(line.substr(num_shown)) + '\n');
  } else if (source.is_shown && !source.is_raw) {
    std::string shown = time_if_wanted();
    shown += source.prefix;
    shown += source.prefix.empty() ? line : without_rank(line, source.rank);
    console_of(source.stream).write_line(shown);
  }
}

void OutputRouter::close_source(Source& source) {
  if (!source.file) {
    return;
  }
  loop_.unwatch(source.file.get());
  std::erase(paused_, &source);
  source.file.reset();
  const std::string rest = source.thinner.finish();
  if (source.log && !options_.is_timed) {
    source.log->write(rest);
  }
  if (!source.is_raw && !source.is_prompt) {
    split(source, rest);
  }
  if (!source.partial.empty() || source.is_open) {
    take_line(source, std::exchange(source.partial, {}));
  }
  if (source.log && !source.is_shown && source.stream == STDOUT_FILENO) {
    num_lost_ += source.log->num_lost();
  }
}

OutputRouter::Source* OutputRouter::find_stderr(int rank) {
  const auto found =
      std::find_if(sources_.begin(), sources_.end(), [&](const auto& source) {
        return source->rank == rank && source->stream == STDERR_FILENO &&
               !source->is_helper;
      });
  return found == sources_.end() ? nullptr : found->get();
}

StderrTail OutputRouter::stderr_tail(int rank) {
  Source* source = find_stderr(rank);
  if (source == nullptr) {
    return {.is_shown = true};
  }
  take_all(*source);
  StderrTail tail;
  tail.is_report = !source->report.empty();
  tail.is_shown = source->is_shown && !source->is_held;
  if (tail.is_report) {
    tail.lines = source->report;
  } else {
    tail.lines = {source->last_lines.begin(), source->last_lines.end()};
  }
  if (!source->partial.empty()) {
    tail.lines.emplace_back(without_rank(source->partial, rank));
  }
  return tail;
}

void OutputRouter::drop_held(int rank) {
  Source* source = find_stderr(rank);
  if (source != nullptr && std::exchange(source->is_held, false)) {
    loop_.cancel(std::exchange(source->report_timer, 0));
    source->partial.clear();
  }
}

void OutputRouter::close_workers() {
  std::erase_if(sources_, [this](const std::unique_ptr<Source>& source) {
    if (!source->is_helper) {
      take_all(*source);
      close_source(*source);
      release(*source);
    }
    return !source->is_helper;
  });
  is_ending_ = false;
}

void OutputRouter::finish(std::function<void()> done) {
  close_workers();
  for (const auto& helper : sources_) {
    take_all(*helper);
    close_source(*helper);
  }
  sources_.clear();
  done_ = std::move(done);
  look_whether_done();
}

void OutputRouter::look_whether_done() {
  if (done_ && out_->is_drained() && (!err_ || err_->is_drained())) {
    std::exchange(done_, nullptr)();
  }
}

int64_t OutputRouter::num_lost() const {
  return num_lost_ + out_->num_lost();
}

void OutputRouter::say(const std::string& line) {
  console_of(STDERR_FILENO).write_line(time_if_wanted() + line);
}

std::string OutputRouter::time_if_wanted() const {
  return options_.is_timed ? time_now() : std::string();
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
