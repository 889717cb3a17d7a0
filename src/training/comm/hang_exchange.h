// SPDX-License-Identifier: Apache-2.0
// How ranks in different processes exchange their positions during a hang. They
// use the store of the run, on a separate connection, so that no collective or
// other store call blocks the exchange.
#pragma once

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/internal.h"
#include "core/observe/watchdog.h"

namespace accelerate {

/// Polls for queries. If this rank waits for longer than its threshold, it
/// makes a query itself. Queries are numbered. All ranks answer, and one
/// waiting rank prints.
class HangExchange {
 public:
  /// Watches this rank of `group`. All handles of a group in a process share
  /// the object. Null if the store cannot be shared between processes.
  static std::shared_ptr<HangExchange> watch(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      std::chrono::milliseconds threshold);

  HangExchange(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      std::chrono::milliseconds threshold);
  /// Does not wait for the thread.
  ~HangExchange();
  HangExchange(const HangExchange&) = delete;
  HangExchange& operator=(const HangExchange&) = delete;

  Membership& membership() { return *membership_; }

 private:
  struct ThreadState;
  std::shared_ptr<ThreadState> thread_;
  Membership* membership_;
};

/// A number to add to c10d's count of collectives. c10d counts a collective of
/// a recorded step when it is recorded, not when it is replayed, and does not
/// count exchanges through shared memory. Thread-safe.
ACCELERATE_INTERNAL std::shared_ptr<std::atomic<int64_t>> uncounted_collectives(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// Returns how many collectives were started for the group. Empty if one of its
/// backends does not count them, or the group is gone. Thread-safe.
ACCELERATE_INTERNAL std::function<std::optional<uint64_t>()> collective_counter(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

} // namespace accelerate
