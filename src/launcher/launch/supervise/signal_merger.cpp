// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/signal_merger.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace accelerate {
namespace {

constexpr std::chrono::milliseconds kPatience{50};
// The maximum number of extensions, for a witness that is not scheduled.
constexpr int kMostExtensions = 20;
// A late report of the guardian within this time is not a second request.
constexpr std::chrono::seconds kMemory{5};
constexpr unsigned kAll = 7;

unsigned bit(SignalReceiver receiver) {
  return static_cast<unsigned>(receiver);
}

bool is_same(const Signal& a, const Signal& b) {
  // A sender in another PID namespace has PID 0.
  return a.number == b.number &&
         (a.sender == b.sender || a.sender == 0 || b.sender == 0);
}

} // namespace

SignalMerger::SignalMerger(
    EventLoop& loop,
    IsWitnessBusy is_busy,
    Callback callback)
    : loop_(loop),
      is_witness_busy_(std::move(is_busy)),
      callback_(std::move(callback)) {}

SignalMerger::~SignalMerger() {
  for (const auto& arrival : arrivals_) {
    loop_.cancel(arrival.timer);
  }
}

void SignalMerger::add(const Signal& signal, SignalReceiver receiver) {
  forget_old();
  // Find the latest arrival, because an earlier one may have been sent to one
  // process only.
  const auto known = std::find_if(
      arrivals_.rbegin(), arrivals_.rend(), [&](const Arrival& other) {
        const bool is_new_there = (other.received_by & bit(receiver)) == 0;
        return is_same(other.signal, signal) &&
               (other.timer != 0 || is_new_there);
      });
  const bool is_older = waiting_at_start_.erase(signal.number) > 0;
  if (known == arrivals_.rend()) {
    arrivals_.push_back(
        {.signal = signal,
         .received_by = bit(receiver),
         .time = EventLoop::Clock::now(),
         .is_older_than_workers = is_older});
    begin_waiting(arrivals_.back());
    return;
  }
  known->received_by |= bit(receiver);
  known->is_older_than_workers |= is_older;
  if (known->received_by == kAll && !std::exchange(known->is_decided, true)) {
    hand_on();
  }
}

void SignalMerger::workers_began() {
  for (Arrival& arrival : arrivals_) {
    arrival.is_older_than_workers = true;
  }
  sigset_t waiting;
  sigpending(&waiting);
  waiting_at_start_.clear();
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (sigismember(&waiting, signal) == 1) {
      waiting_at_start_.insert(signal);
    }
  }
}

bool SignalMerger::is_request_waiting() const {
  return std::any_of(
      arrivals_.begin(), arrivals_.end(), [](const Arrival& arrival) {
        return !arrival.is_handed_on &&
               is_request_to_end(arrival.signal.number);
      });
}

void SignalMerger::begin_waiting(Arrival& arrival) {
  const auto timer = std::make_shared<EventLoop::TimerId>(0);
  *timer = loop_.after(kPatience, [this, timer] { waited(*timer); });
  arrival.timer = *timer;
}

void SignalMerger::waited(EventLoop::TimerId timer) {
  const auto arrival = std::find_if(
      arrivals_.begin(), arrivals_.end(), [&](const Arrival& other) {
        return other.timer == timer;
      });
  const bool has_witness =
      (arrival->received_by & bit(SignalReceiver::kWitness)) != 0;
  if (!has_witness && is_witness_busy_(arrival->signal.number) &&
      arrival->num_extensions++ < kMostExtensions) {
    begin_waiting(*arrival);
    return;
  }
  arrival->timer = 0;
  arrival->is_decided = true;
  if (arrival->received_by == bit(SignalReceiver::kWitness)) {
    arrivals_.erase(arrival); // only the witness received it
  }
  hand_on();
}

void SignalMerger::hand_on() {
  // Copy them first, because a callback may start workers.
  std::vector<std::pair<int, bool>> ready;
  for (Arrival& arrival : arrivals_) {
    if (!arrival.is_decided) {
      break;
    }
    if (!std::exchange(arrival.is_handed_on, true)) {
      ready.emplace_back(
          arrival.signal.number,
          (arrival.received_by & bit(SignalReceiver::kWitness)) != 0 &&
              !arrival.is_older_than_workers);
    }
  }
  for (const auto& [number, is_group_signalled] : ready) {
    callback_(number, is_group_signalled);
  }
}

void SignalMerger::forget_old() {
  const auto now = EventLoop::Clock::now();
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    return arrival.timer == 0 &&
           (arrival.received_by == kAll || now - arrival.time > kMemory);
  });
}

} // namespace accelerate
