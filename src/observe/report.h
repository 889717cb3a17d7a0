// SPDX-License-Identifier: Apache-2.0
// What one rank says of itself, and what is said of all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "observe/rank_record.h"

namespace accelerate {

/// Where a thread is, innermost frame first.
struct Stack {
  struct Frame {
    /// "train.py:12 in main: total = sum(losses)".
    std::string text = {};
    /// Not of torch, the C library and the like, nor ours.
    bool is_users = false;
  };
  std::vector<Frame> frames = {};
};

struct RankReport {
  int rank = 0;
  int world_size = 1;
  std::string host = {};
  int pid = 0;
  Part part = Part::kUser;
  /// Whether it can only go on when others come.
  bool waits = false;
  /// Since when nothing has changed.
  double seconds = 0;
  /// What it is in the middle of; empty outside of collectives.
  std::string operation = {};
  /// Of the collective that it is in, else of the last that the group began,
  /// whoever called it.
  uint64_t number = 0;
  Stack stack = {};
};

/// As text for a store or a socket. `decode_report` throws `DataError`.
ACCELERATE_API std::string encode(const RankReport& report);
ACCELERATE_API RankReport decode_report(const std::string& text);

/// A rank that did not answer.
struct SilentRank {
  int rank = 0;
  /// Both empty where it never told.
  std::string host = {};
  int pid = 0;
};

/// Whether there is something to say: a rank has waited for `threshold`
/// seconds, and stands elsewhere than another, or others are silent, or all of
/// them wait in one collective. All in one backward compute.
ACCELERATE_API bool is_hang(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent,
    double threshold);

/// Whether a message would call a rank slow: what it says of that rank need not
/// stay true.
ACCELERATE_API bool names_slow_rank(
    const std::vector<RankReport>& reports,
    double threshold);

/// The one message for a collective that waits: who waits in what, who is
/// elsewhere and where, who does not answer. Ranks that say the same share a
/// line. One that moved within `threshold` seconds is called slow.
ACCELERATE_API std::string describe_hang(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent,
    double threshold);

/// A line for each rank and its stack, whatever it does.
ACCELERATE_API std::string describe_ranks(
    const std::vector<RankReport>& reports);

/// What this machine knows of a process of its own: that it has ended, or was
/// stopped by a signal; empty where it runs.
ACCELERATE_API std::string why_silent(int pid);

} // namespace accelerate
