// SPDX-License-Identifier: Apache-2.0
// One signal out of the two that a process group gets.
#pragma once

#include <functional>
#include <vector>

#include "accelerate/export.h"
#include "launch/supervise/event_loop.h"
#include "launch/supervise/signal_file.h"

namespace accelerate {

/// The launcher is two processes, and what is sent to their process group
/// reaches the supervisor twice: itself and through the guardian. Tells the
/// pair from a signal to one of them, which the workers have not seen yet.
class ACCELERATE_API SignalMerger {
 public:
  /// `is_group_told`: every process of the launcher's group has got it.
  using Callback = std::function<void(int signal, bool is_group_told)>;

  SignalMerger(EventLoop& loop, pid_t guardian, Callback callback);
  ~SignalMerger();

  void came(const Signal& signal) { arrived(signal, true); }
  void came_through_guardian(const Signal& signal) { arrived(signal, false); }

 private:
  struct Arrival {
    Signal signal;
    bool is_direct = false;
    /// 0 once it was handed on alone.
    EventLoop::TimerId timer = 0;
  };

  void arrived(const Signal& signal, bool is_direct);
  void waited(uint64_t timer);

  EventLoop& loop_;
  pid_t guardian_;
  Callback callback_;
  std::vector<Arrival> arrivals_;
};

} // namespace accelerate
