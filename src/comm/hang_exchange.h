// SPDX-License-Identifier: Apache-2.0
// How ranks that are processes of their own tell each other where they stand:
// by the store of their first contact, on a connection of its own, so that no
// collective and no call of the store's is in the way.
#pragma once

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/export.h"
#include "observe/watchdog.h"

namespace accelerate {

/// Looks every now and then whether somebody asks; where this rank waits for
/// longer than its threshold, it asks itself. Each round of questions has a
/// number: all ranks answer, one that waits prints.
class HangExchange {
 public:
  /// Watches this rank of `group`: one for all handles of a group in a process.
  /// Null where the store cannot be shared between processes.
  static std::shared_ptr<HangExchange> watch(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      std::chrono::milliseconds threshold);

  HangExchange(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group,
      std::chrono::milliseconds threshold);
  /// Waits for nobody.
  ~HangExchange();
  HangExchange(const HangExchange&) = delete;
  HangExchange& operator=(const HangExchange&) = delete;

  Membership& membership() { return *membership_; }

 private:
  struct Talk;
  std::shared_ptr<Talk> talk_;
  Membership* membership_;
};

/// To be added to what c10d has counted for the group. It counts a collective
/// of a recorded step when that is recorded, not when it is replayed, and does
/// not see exchanges through shared memory. For any thread.
ACCELERATE_API std::shared_ptr<std::atomic<int64_t>> uncounted_collectives(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// How many collectives were begun for the group; nothing where one of its
/// backends does not count, or it has gone. For any thread.
ACCELERATE_API std::function<std::optional<uint64_t>()> collective_counter(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

} // namespace accelerate
