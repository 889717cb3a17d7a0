// SPDX-License-Identifier: Apache-2.0
// Waits for files and timers on one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>

#include "core/base/internal.h"

namespace accelerate {

/// Calls back when a watched file is ready or a timer is due. Single-threaded.
/// A callback may watch and unwatch files, and set and cancel timers. An
/// exception of a callback leaves `run`, which may then be called again.
class ACCELERATE_INTERNAL EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using FileCallback = std::function<void(short events)>;
  using TimerCallback = std::function<void()>;
  using TimerId = uint64_t;

  /// Watches `file` for `events` of poll(2). There is one watch per file. A
  /// second one replaces the first.
  void watch(int file, short events, FileCallback callback);
  void unwatch(int file);
  /// Calls `callback` once after `delay`. The id is never 0.
  TimerId after(std::chrono::milliseconds delay, TimerCallback callback);
  /// No effect on an expired timer.
  void cancel(TimerId timer);

  /// Runs until `stop`. Returns immediately if `stop` was called before.
  void run();
  void stop() { is_stopped_ = true; }

 private:
  struct Watch {
    short events = 0;
    uint64_t generation = 0;
    FileCallback callback;
  };

  int next_timeout() const;
  void call_due_timers();
  void call_ready_files();

  std::map<int, Watch> watches_;
  std::map<std::pair<Clock::time_point, TimerId>, TimerCallback> timers_;
  std::map<TimerId, Clock::time_point> due_;
  uint64_t last_id_ = 0;
  bool is_stopped_ = false;
};

} // namespace accelerate
