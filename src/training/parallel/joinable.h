// SPDX-License-Identifier: Apache-2.0
// What an engine implements so that ranks may have different numbers of
// batches.
#pragma once

#include <cstdint>
#include <memory>

namespace accelerate {

class JoinChannel;
struct JoinNews;

/// The part of an engine that a `JoinGuard` uses.
class Joinable {
 public:
  /// From here to `end_join`, forwards and backwards are announced on `channel`
  /// as those of model number `index`.
  virtual void begin_join(
      std::shared_ptr<JoinChannel> channel,
      int64_t index) = 0;
  virtual void end_join() = 0;
  /// On a rank without batches: makes the collectives that match those of the
  /// other ranks.
  virtual void match(const JoinNews& news) = 0;
  /// Gives all ranks the parameters and buffers of `root`.
  virtual void share_all(int root) = 0;

 protected:
  ~Joinable() = default;
};

} // namespace accelerate
