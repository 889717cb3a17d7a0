// SPDX-License-Identifier: Apache-2.0
// Where rank 0 waits for the others, and until when.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "accelerate/process.h"

namespace accelerate {

/// One for all steps of a first contact. A timeout is one that begins now.
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
  /// As long as this one, from now on.
  Deadline anew() const { return timeout_; }
  /// What it was at the beginning, for messages.
  double seconds() const {
    return std::chrono::duration<double>(timeout_).count();
  }

 private:
  milliseconds timeout_;
  std::chrono::steady_clock::time_point end_;
};

/// The addresses of rank 0's machine. Throws `ConfigError` where nobody has
/// said which it is, or where its name is still unknown at the deadline: on
/// clusters, names may come up later than processes.
std::vector<std::string> find_meeting_point(
    const ProcessEnvironment& environment,
    const Deadline& deadline);

} // namespace accelerate
