// SPDX-License-Identifier: Apache-2.0
// The standard streams of the workers of one machine.
#pragma once

#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/supervise/child_process.h"
#include "launch/supervise/console.h"
#include "launch/supervise/event_loop.h"
#include "launch/supervise/unique_file.h"

namespace accelerate {

struct OutputOptions {
  /// Per-rank files go here, in `attempt_<n>/rank_<r>/{stdout,stderr}.log`;
  /// empty: no files.
  std::filesystem::path log_dir = {};
  /// With `log_dir`, the streams that are shown too: 1 out, 2 err, 3 both.
  int tee = 3;
  /// Lines of ranks other than 0 start with `[rank N] `.
  bool is_prefixed = true;
  bool is_coloured = false;
  /// The one worker of a run that needs no files owns the launcher's streams.
  bool is_inherited = false;
  /// The first worker may read the launcher's stdin.
  bool is_input_shared = true;
  /// A pipe shows what the first worker draws before its line is complete, as
  /// a terminal does: somebody watches at its other end.
  bool is_prompt = false;
};

/// Makes the streams of each worker, keeps the last lines of its stderr, and
/// shows lines whole: the launcher's output never mixes two ranks in a line.
///
/// On a terminal the first worker of the machine gets a pseudo-terminal whose
/// bytes are passed on as they come, so that its progress bar works; lines of
/// the others appear above it.
class ACCELERATE_API OutputRouter {
 public:
  OutputRouter(EventLoop& loop, OutputOptions options);
  ~OutputRouter();
  OutputRouter(const OutputRouter&) = delete;
  OutputRouter& operator=(const OutputRouter&) = delete;

  /// The worker's ends of its streams; close them once it has started.
  /// Throws `SystemError` where a log file cannot be written.
  ChildStreams open(int rank, bool is_first, int attempt);
  /// Ends of the streams of a helper (ssh) whose lines are shown as they are.
  ChildStreams open_helper(int id);
  /// Takes what the rank has written so far, then returns the last lines of
  /// its stderr.
  std::vector<std::string> last_lines(int rank);
  /// Takes what is left of every rank, partial lines too, and closes them.
  void close_workers();
  /// The same for helpers too, and writes what the consoles still keep.
  void finish();
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
  void show_line(Source& source, std::string_view line);
  void show_start(Source& source);
  void close_source(Source& source);
  void watch(Source& source);
  UniqueFile make_stream(int rank, int stream, bool is_first, int attempt);
  Console& console_of(int stream);

  EventLoop& loop_;
  OutputOptions options_;
  std::unique_ptr<Console> out_;
  /// Null where stderr is the same terminal as stdout.
  std::unique_ptr<Console> err_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Source*> paused_;
};

} // namespace accelerate
