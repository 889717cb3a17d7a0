// SPDX-License-Identifier: Apache-2.0
// The standard streams of the workers of one machine.
#pragma once

#include <unistd.h>

#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/base/unique_file.h"
#include "core/config/stream_choice.h"
#include "launcher/launch/supervise/child_process.h"
#include "launcher/launch/supervise/console.h"
#include "launcher/launch/supervise/event_loop.h"

namespace accelerate {

struct OutputOptions {
  /// The folder for per-rank files, with a subfolder per run (see
  /// `log_folder.h`). Empty means no files.
  std::filesystem::path log_dir = {};
  /// The size at which a file is rotated. 0 means never.
  int64_t log_bytes = 0;
  /// The streams that are also shown if there is a `log_dir`.
  StreamChoice tee = {};
  /// Local ranks whose lines are shown. Empty means all. Files contain all.
  std::set<int> shown_local_ranks = {};
  /// Lines of ranks other than 0 start with `[rank N] `.
  bool is_prefixed = true;
  bool is_coloured = false;
  /// Lines start with the time, on the terminal and in files.
  bool is_timed = false;
  /// Whether the only worker of a run without files uses the launcher's
  /// streams.
  bool is_inherited = false;
  /// Whether the first worker may read the launcher's stdin.
  bool is_input_shared = true;
  /// Whether a pipe shows output of the first worker before its line is
  /// complete, as a terminal does. Set if someone is watching the other end.
  bool is_prompt = false;
  /// Whether fatal error reports of all ranks are shown immediately.
  bool shows_all_errors = false;
};

/// The end of a worker's stderr.
struct StderrTail {
  /// The lines, oldest first, without torch's "[rank1]: ".
  std::vector<std::string> lines = {};
  /// Whether `lines` are a traceback or similar (see error_report.h). Otherwise
  /// they are just the last lines.
  bool is_report = false;
  /// Whether the console already shows `lines`.
  bool is_shown = false;
};

/// Creates the streams of each worker, keeps the last lines of its stderr, and
/// shows whole lines: the launcher's output never mixes two ranks in a line. A
/// line of more than 1 MiB is split, and each piece except the last is marked
/// with `[the line continues]`.
///
/// The report of a fatal error (a traceback) and the output after it are held
/// back. They are shown when the worker has ended, when it writes to either
/// stream two seconds later, or after five seconds. The message about the end
/// of the job then shows one report, last, and drops the others. Files contain
/// all reports. Progress bars are redrawn only on terminals. Elsewhere, they
/// become one line every few seconds.
///
/// On a terminal, the first worker of the machine gets a pseudo-terminal whose
/// bytes are passed on immediately, so that its progress bar works. Lines of
/// the other workers appear above it.
class ACCELERATE_INTERNAL OutputRouter {
 public:
  /// Shows the output of workers on `out` and `err`.
  OutputRouter(
      EventLoop& loop,
      OutputOptions options,
      int out = STDOUT_FILENO,
      int err = STDERR_FILENO);
  ~OutputRouter();
  OutputRouter(const OutputRouter&) = delete;
  OutputRouter& operator=(const OutputRouter&) = delete;

  /// Creates the streams of a worker and returns the worker's ends. Close them
  /// once it has started. Its files go to `log_folder`. Throws `SystemError` if
  /// a file cannot be written.
  ChildStreams
  open(int rank, int local_rank, const std::filesystem::path& log_folder);
  /// Like `open` for a helper (ssh), whose lines are shown unchanged.
  ChildStreams open_helper(int id);
  /// Reads what the rank has written so far, then returns the end of its
  /// stderr.
  StderrTail stderr_tail(int rank);
  /// Drops what is held back for the rank.
  void drop_held(int rank);
  bool shows_all_errors() const { return options_.shows_all_errors; }
  /// Keeps reports held back until `close_workers`, because the workers are
  /// ending.
  void hold_reports() { is_ending_ = true; }
  /// Reads the remaining output of every rank, including partial lines, and
  /// closes the streams.
  void close_workers();
  /// Like `close_workers`, including helpers. Calls `done` once all output was
  /// read, however long that takes.
  void finish(std::function<void()> done);
  /// Bytes of standard output that were lost: not shown and in no file.
  int64_t num_lost() const;
  /// Prints a line of the launcher itself on stderr.
  void say(const std::string& line);
  /// Passes the size of the window to the pseudo-terminals.
  void resize();

 private:
  struct Source;

  void add(std::unique_ptr<Source> source);
  void take(Source& source);
  void take_all(Source& source);
  void show(Source& source, std::string_view text);
  /// Shows text after it was written to the file.
  void route(Source& source, std::string_view text);
  void split(Source& source, std::string_view text);
  void take_line(Source& source, std::string_view line);
  void show_line(Source& source, std::string_view line);
  void begin_report(Source& source);
  /// Shows a report that did not end its worker, which keeps writing.
  void release_if_alive(int rank);
  void release(Source& source);
  Source* find_stderr(int rank);
  void show_start(Source& source);
  void close_source(Source& source);
  void watch(Source& source);
  UniqueFile make_stream(
      int rank,
      int local_rank,
      int stream,
      const std::filesystem::path& log_folder);
  void look_whether_done();
  std::string time_if_wanted() const;
  Console& console_of(int stream);

  EventLoop& loop_;
  OutputOptions options_;
  std::unique_ptr<Console> out_;
  /// Null if stderr is the same file as stdout.
  std::unique_ptr<Console> err_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Source*> paused_;
  /// The latest input, which is too large for a small stack.
  std::vector<char> buffer_ = std::vector<char>(65536);
  int64_t num_lost_ = 0;
  bool is_ending_ = false;
  std::function<void()> done_;
};

} // namespace accelerate
