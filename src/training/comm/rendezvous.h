// SPDX-License-Identifier: Apache-2.0
// The address of rank 0, and the deadline for connecting.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "accelerate/process.h"

namespace accelerate {

/// The deadline that all steps of connecting share. Time starts when it is
/// constructed from a timeout.
class Deadline {
 public:
  using milliseconds = std::chrono::milliseconds;
  Deadline(milliseconds timeout)
      : timeout_(timeout), end_(std::chrono::steady_clock::now() + timeout) {}

  milliseconds left() const {
    return std::max(
        milliseconds(0),
        std::chrono::duration_cast<milliseconds>(
            end_ - std::chrono::steady_clock::now()));
  }
  /// A new deadline with the same duration.
  Deadline anew() const { return timeout_; }
  /// The original duration, for messages.
  double seconds() const {
    return std::chrono::duration<double>(timeout_).count();
  }

 private:
  milliseconds timeout_;
  std::chrono::steady_clock::time_point end_;
};

/// The addresses of rank 0's machine. Throws `ConfigError` if no address is
/// configured, or its name is still unknown at the deadline. On clusters, names
/// may become available after processes have started.
std::vector<std::string> resolve_rank_0(
    const ProcessEnvironment& environment,
    const Deadline& deadline);

} // namespace accelerate
