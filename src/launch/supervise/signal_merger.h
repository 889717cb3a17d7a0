// SPDX-License-Identifier: Apache-2.0
// One signal out of those that the processes of a launcher get.
#pragma once

#include <signal.h>

#include <functional>
#include <set>
#include <vector>

#include "accelerate/export.h"
#include "launch/supervise/event_loop.h"
#include "launch/supervise/signal_file.h"

namespace accelerate {

/// The process of the launcher that a signal has reached.
enum class Reached : unsigned { kSupervisor = 1, kGuardian = 2, kWitness = 4 };

/// What is sent to a process group reaches the supervisor three times: itself,
/// through the guardian and through the witness (`SignalWitness`). Makes one
/// signal of them, and says whether the workers have got it as well.
///
/// Signals are handed on in the order in which they came. What one sender
/// sends again within a twentieth of a second is the same signal (`timeout`
/// tells first the launcher, then the group).
class ACCELERATE_API SignalMerger {
 public:
  /// `is_group_told`: every process of the launcher's group has got it.
  using Callback = std::function<void(int signal, bool is_group_told)>;
  /// Whether the witness may have a signal that it has not reported yet.
  using IsWitnessBusy = std::function<bool(int signal)>;

  SignalMerger(EventLoop& loop, IsWitnessBusy is_busy, Callback callback);
  ~SignalMerger();

  void came(const Signal& signal, Reached reached);
  /// Workers have been started: what has come so far, and what waits to be
  /// taken now, may have come before them.
  void workers_began();
  /// Whether a request to end has come that is not handed on yet.
  bool is_request_waiting() const;

 private:
  struct Arrival {
    Signal signal;
    unsigned reached = 0;
    EventLoop::Clock::time_point time = {};
    /// 0 once its time is over.
    EventLoop::TimerId timer = 0;
    int num_extensions = 0;
    bool is_decided = false;
    bool is_handed_on = false;
    bool is_older_than_workers = false;
  };

  void begin_waiting(Arrival& arrival);
  void waited(EventLoop::TimerId timer);
  void hand_on();
  void forget_old();

  EventLoop& loop_;
  IsWitnessBusy is_witness_busy_;
  Callback callback_;
  std::vector<Arrival> arrivals_;
  /// Numbers that waited to be taken when workers began.
  std::set<int> waiting_at_start_;
};

} // namespace accelerate
