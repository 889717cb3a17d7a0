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

#include "accelerate/export.h"
#include "base/unique_file.h"
#include "config/stream_choice.h"
#include "launch/supervise/child_process.h"
#include "launch/supervise/console.h"
#include "launch/supervise/event_loop.h"

namespace accelerate {

struct OutputOptions {
  /// Per-rank files go here, in a folder per run (see `log_folder.h`); empty:
  /// no files.
  std::filesystem::path log_dir = {};
  /// The size at which a file is put aside; 0: never.
  int64_t log_bytes = 0;
  /// With `log_dir`, the streams that are shown too.
  StreamChoice tee = {};
  /// Local ranks whose lines are shown; empty: all. Files hold all.
  std::set<int> shown_local_ranks = {};
  /// Lines of ranks other than 0 start with `[rank N] `.
  bool is_prefixed = true;
  bool is_coloured = false;
  /// Lines start with the time, in files too.
  bool is_timed = false;
  /// The one worker of a run that needs no files owns the launcher's streams.
  bool is_inherited = false;
  /// The first worker may read the launcher's stdin.
  bool is_input_shared = true;
  /// A pipe shows what the first worker draws before its line is complete, as
  /// a terminal does: somebody watches at its other end.
  bool is_prompt = false;
  /// Reports of fatal errors appear as they come, from all ranks.
  bool shows_all_errors = false;
};

/// The end of what a worker wrote on stderr.
struct LastWords {
  /// Oldest first, without torch's "[rank1]: ".
  std::vector<std::string> lines = {};
  /// A traceback or the like (see last_words.h); else just the last lines.
  bool is_report = false;
  /// The console has them already.
  bool is_shown = false;
};

/// Makes the streams of each worker, keeps the last lines of its stderr, and
/// shows lines whole: the launcher's output never mixes two ranks in a line.
/// A line of more than 1 MiB comes in pieces, each but the last marked with
/// `[the line continues]`.
///
/// The report of a fatal error (a traceback) is held back, with what follows
/// it, until the worker has ended, writes to either stream two seconds later,
/// or five seconds have passed: whoever tells how the job ended shows one of
/// them, last, and drops the others. Files get all.
/// Progress bars are drawn again on terminals only; elsewhere they are a line
/// every few seconds.
///
/// On a terminal the first worker of the machine gets a pseudo-terminal whose
/// bytes are passed on as they come, so that its progress bar works; lines of
/// the others appear above it.
class ACCELERATE_API OutputRouter {
 public:
  /// Shows what workers write on `out` and `err`.
  OutputRouter(
      EventLoop& loop,
      OutputOptions options,
      int out = STDOUT_FILENO,
      int err = STDERR_FILENO);
  ~OutputRouter();
  OutputRouter(const OutputRouter&) = delete;
  OutputRouter& operator=(const OutputRouter&) = delete;

  /// The worker's ends of its streams; close them once it has started. Its
  /// files go to `log_folder`. Throws `SystemError` where one cannot be
  /// written.
  ChildStreams
  open(int rank, int local_rank, const std::filesystem::path& log_folder);
  /// Ends of the streams of a helper (ssh) whose lines are shown as they are.
  ChildStreams open_helper(int id);
  /// Takes what the rank has written so far, then returns the end of its
  /// stderr.
  LastWords last_words(int rank);
  /// What is held back of the rank is not shown.
  void drop_held(int rank);
  bool shows_all_errors() const { return options_.shows_all_errors; }
  /// Nothing is released before the workers are closed: they are ending.
  void hold_on() { is_ending_ = true; }
  /// Takes what is left of every rank, partial lines too, and closes them.
  void close_workers();
  /// The same for helpers too; calls `done` once readers have taken all that
  /// was written for them, however long that takes.
  void finish(std::function<void()> done);
  /// Bytes of standard output that are nowhere: not shown and in no file.
  int64_t num_lost() const;
  /// A line of the launcher itself, to stderr.
  void say(const std::string& line);
  /// Tells the pseudo-terminals the size of the window.
  void resize();

 private:
  struct Source;

  void add(std::unique_ptr<Source> source);
  void take(Source& source);
  void take_all(Source& source);
  void show(Source& source, std::string_view text);
  /// Shows text after the file has got it.
  void route(Source& source, std::string_view text);
  void split(Source& source, std::string_view text);
  void take_line(Source& source, std::string_view line);
  void show_line(Source& source, std::string_view line);
  void begin_report(Source& source);
  /// Shows a report that did not end its worker: it writes on.
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
  /// Null where stderr is the same file as stdout.
  std::unique_ptr<Console> err_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Source*> paused_;
  /// What was read last; too large for a small stack.
  std::vector<char> buffer_ = std::vector<char>(65536);
  int64_t num_lost_ = 0;
  bool is_ending_ = false;
  std::function<void()> done_;
};

} // namespace accelerate
