// SPDX-License-Identifier: Apache-2.0
// The report of one rank, and messages about all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/observe/rank_record.h"

namespace accelerate {

/// A stack, innermost frame first.
struct Stack {
  struct Frame {
    /// "train.py:12 in main: total = sum(losses)".
    std::string text = {};
    /// Whether the frame is user code, not code of torch, a system library or
    /// this library.
    bool is_users = false;
  };
  std::vector<Frame> frames = {};
};

struct RankReport {
  int rank = 0;
  int world_size = 1;
  std::string host = {};
  int pid = 0;
  StepPhase phase = StepPhase::kUser;
  /// Whether the rank can only continue when other ranks arrive.
  bool waits = false;
  /// Seconds since the rank last changed its activity.
  double seconds = 0;
  /// The current collective. Empty outside of collectives.
  std::string operation = {};
  /// The number of the current collective, or else of the last one that the
  /// group started, on any thread.
  uint64_t number = 0;
  Stack stack = {};
};

/// Converts a report to text for a store or a socket, and back. `decode_report`
/// throws `DataError`.
ACCELERATE_INTERNAL std::string encode(const RankReport& report);
ACCELERATE_INTERNAL RankReport decode_report(const std::string& text);

/// A rank that did not answer.
struct SilentRank {
  int rank = 0;
  /// Both are empty if unknown.
  std::string host = {};
  int pid = 0;
};

/// Whether there is something to report: a rank has waited for `threshold`
/// seconds, and either other ranks are elsewhere or silent, or all ranks wait
/// in the same collective. If all ranks are in the same backward pass, they are
/// computing.
ACCELERATE_INTERNAL bool is_hang(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent,
    double threshold);

/// Whether the message would call a rank slow. That may change later.
ACCELERATE_INTERNAL bool names_slow_rank(
    const std::vector<RankReport>& reports,
    double threshold);

/// The message about a collective that waits. It says which ranks wait in which
/// operation, where the other ranks are, and which ranks do not answer. Ranks
/// with equal descriptions share a line. A rank that moved within `threshold`
/// seconds is called slow.
ACCELERATE_INTERNAL std::string describe_hang(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent,
    double threshold);

/// One line per rank with its stack, whatever the rank is doing.
ACCELERATE_INTERNAL std::string describe_ranks(
    const std::vector<RankReport>& reports);

/// What is known about a process on this machine: that it has ended, or was
/// stopped by a signal. Empty if it is running.
ACCELERATE_INTERNAL std::string why_silent(int pid);

} // namespace accelerate
