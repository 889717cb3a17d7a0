// SPDX-License-Identifier: Apache-2.0
// One output of the launcher, shared by all ranks of this machine.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/export.h"
#include "launch/supervise/event_loop.h"

namespace accelerate {

/// Writes whole lines of many sources, and the raw output of one (a progress
/// bar that it draws again and again) without mixing them: where the raw
/// output stands in the middle of a line, other lines are written above it; on
/// a pipe, after it.
///
/// Never blocks: what the reader does not take yet is kept, and `is_full` asks
/// the sources to pause.
class ACCELERATE_API Console {
 public:
  Console(EventLoop& loop, int file);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const { return is_terminal_; }
  /// `line` without its newline.
  void write_line(std::string_view line);
  void write_raw(std::string_view text);
  /// Whether so much is kept that sources should wait.
  bool is_full() const;
  /// Called whenever the console has room again.
  void on_room(std::function<void()> callback) { room_ = std::move(callback); }
  /// Writes what is kept, waiting at most `limit` for the reader.
  void flush(std::chrono::milliseconds limit);

 private:
  void write_now();
  void write_some();

  EventLoop& loop_;
  int file_;
  bool is_terminal_;
  bool is_watched_ = false;
  std::string kept_;
  /// What the raw source wrote since its last line end or carriage return.
  std::string open_line_;
  /// Whether that line was ended for it.
  bool is_cut_ = false;
  std::function<void()> room_;
};

} // namespace accelerate
