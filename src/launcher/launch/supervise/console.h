// SPDX-License-Identifier: Apache-2.0
// An output stream of the launcher, shared by all ranks of this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/internal.h"
#include "core/base/unique_file.h"
#include "launcher/launch/supervise/event_loop.h"

namespace accelerate {

/// Writes whole lines of many sources, and the raw output of one source (a
/// progress bar that is redrawn), without mixing them. If the raw output is in
/// the middle of a line, other lines are written above it or, on a pipe, after
/// it.
///
/// Never blocks: unread output is buffered, and `is_full` asks the sources to
/// pause. SIGPIPE must be blocked or ignored.
class ACCELERATE_INTERNAL Console {
 public:
  struct Callbacks {
    /// Called when there is room again after `is_full`.
    std::function<void()> unblocked = {};
    /// Called when the buffer is empty.
    std::function<void()> drained = {};
    /// Called once per cause when output was lost: "the reader is gone".
    std::function<void(const std::string& cause)> lost = {};
  };

  Console(EventLoop& loop, int file);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const { return is_terminal_; }
  void on(Callbacks callbacks) { callbacks_ = std::move(callbacks); }
  /// Writes a line, given without its newline.
  void write_line(std::string_view line);
  void write_raw(std::string_view text);
  /// Whether the buffer is so large that sources should pause.
  bool is_full() const;
  /// Whether everything was written, or is lost.
  bool is_drained() const { return num_gone_ == kept_.size(); }
  /// Bytes that could not be written although someone reads (a full disk).
  /// Output that a reader has not read before it closed does not count.
  int64_t num_lost() const { return num_lost_; }

 private:
  void write_now();
  void write_some();
  void drop(const std::string& cause);

  EventLoop& loop_;
  /// Our own open file description if possible, so that another writer of the
  /// same pipe cannot make it blocking.
  UniqueFile own_;
  int file_;
  bool is_terminal_;
  bool is_watched_ = false;
  std::string kept_;
  /// How many bytes of `kept_` were written.
  size_t num_gone_ = 0;
  int64_t num_lost_ = 0;
  std::string last_cause_;
  /// The incomplete line that the raw source currently shows. Empty if it is
  /// too long to be redrawn.
  std::string open_line_;
  bool is_line_open_ = false;
  /// Whether a newline was written to end that line early.
  bool is_cut_ = false;
  Callbacks callbacks_;
};

} // namespace accelerate
