// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/signal_merger.h"

#include <algorithm>
#include <memory>

#include "launch/supervise/process_tree.h"

namespace accelerate {
namespace {

constexpr std::chrono::milliseconds kPatience{50};
constexpr size_t kMostRemembered = 32;

bool is_same(const Signal& a, const Signal& b) {
  // Across a PID namespace the sender has no number.
  return a.number == b.number &&
         (a.sender == b.sender || a.sender == 0 || b.sender == 0);
}

} // namespace

SignalMerger::SignalMerger(EventLoop& loop, pid_t guardian, Callback callback)
    : loop_(loop), guardian_(guardian), callback_(std::move(callback)) {}

SignalMerger::~SignalMerger() {
  for (const auto& arrival : arrivals_) {
    loop_.cancel(arrival.timer);
  }
}

void SignalMerger::arrived(const Signal& signal, bool is_direct) {
  if (signal.is_from_terminal) {
    callback_(signal.number, true);
    return;
  }
  const auto twin = std::find_if(
      arrivals_.begin(), arrivals_.end(), [&](const Arrival& other) {
        return other.is_direct != is_direct && is_same(other.signal, signal);
      });
  if (twin != arrivals_.end()) {
    const bool was_waiting = twin->timer != 0;
    loop_.cancel(twin->timer);
    arrivals_.erase(twin);
    if (was_waiting) {
      callback_(signal.number, true);
    }
    return;
  }
  if (arrivals_.size() >= kMostRemembered) {
    loop_.cancel(arrivals_.front().timer);
    arrivals_.erase(arrivals_.begin());
  }
  const auto timer = std::make_shared<EventLoop::TimerId>(0);
  *timer = loop_.after(kPatience, [this, timer] { waited(*timer); });
  arrivals_.push_back({signal, is_direct, *timer});
}

void SignalMerger::waited(uint64_t timer) {
  const auto arrival = std::find_if(
      arrivals_.begin(), arrivals_.end(), [&](const Arrival& other) {
        return other.timer == timer;
      });
  arrival->timer = 0;
  const int number = arrival->signal.number;
  // A guardian that had no time to pass it on still holds it.
  const bool is_group_told =
      arrival->is_direct && has_signal_flag(guardian_, "ShdPnd", number);
  callback_(number, is_group_told);
}

} // namespace accelerate
