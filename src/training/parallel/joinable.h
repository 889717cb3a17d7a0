// SPDX-License-Identifier: Apache-2.0
// The interface of an engine whose ranks may have different numbers of batches.
#pragma once

#include <cstdint>
#include <memory>

namespace accelerate {

class JoinChannel;
struct JoinAnnouncement;

/// The interface of an engine that a `JoinGuard` uses.
class Joinable {
 public:
  /// Until `end_join`, announces forward and backward passes on `channel` under
  /// the model number `index`.
  virtual void begin_join(
      std::shared_ptr<JoinChannel> channel,
      int64_t index) = 0;
  virtual void end_join() = 0;
  /// On a rank without batches: makes the collectives that match those of the
  /// other ranks.
  virtual void match(const JoinAnnouncement& announced) = 0;
  /// Broadcasts the parameters and buffers of `root` to all ranks.
  virtual void share_all(int root) = 0;

 protected:
  ~Joinable() = default;
};

} // namespace accelerate
