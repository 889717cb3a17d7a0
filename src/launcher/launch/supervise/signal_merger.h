// SPDX-License-Identifier: Apache-2.0
// Merges the copies of a signal that several processes of a launcher receive.
#pragma once

#include <signal.h>

#include <functional>
#include <set>
#include <vector>

#include "core/base/internal.h"
#include "launcher/launch/supervise/event_loop.h"
#include "launcher/launch/supervise/signal_file.h"

namespace accelerate {

/// A process of the launcher that can receive a signal. Values are bits.
enum class SignalReceiver : unsigned {
  kSupervisor = 1,
  kGuardian = 2,
  kWitness = 4
};

/// A signal to a process group reaches the supervisor three times: directly,
/// through the guardian and through the witness (`SignalWitness`). This merges
/// them into one signal, and determines whether the workers have received it,
/// too.
///
/// Signals are passed on in the order of arrival. Repetitions by one sender
/// within a twentieth of a second are the same signal (`timeout` first signals
/// the launcher, then the group).
class ACCELERATE_INTERNAL SignalMerger {
 public:
  /// `is_group_signalled` is true if the whole group of the launcher has
  /// received it.
  using Callback = std::function<void(int signal, bool is_group_signalled)>;
  /// Whether the witness may have a signal that it has not reported yet.
  using IsWitnessBusy = std::function<bool(int signal)>;

  SignalMerger(EventLoop& loop, IsWitnessBusy is_busy, Callback callback);
  ~SignalMerger();

  void add(const Signal& signal, SignalReceiver receiver);
  /// Call it when workers have been started. Earlier signals, and those still
  /// pending, may have been sent before that.
  void workers_began();
  /// Whether a request to end has arrived that was not passed on yet.
  bool is_request_waiting() const;

 private:
  struct Arrival {
    Signal signal;
    unsigned received_by = 0;
    EventLoop::Clock::time_point time = {};
    /// The timer of the current wait. 0 once it is over.
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
  /// Signals that were pending when workers started.
  std::set<int> waiting_at_start_;
};

} // namespace accelerate
