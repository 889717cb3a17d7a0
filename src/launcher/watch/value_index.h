// SPDX-License-Identifier: Apache-2.0
// Where the lines of a metrics.jsonl are, so that a part of them can be read
// again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "launcher/watch/thinned.h"

namespace accelerate {

enum class RunAxis { kStep, kTime };

/// A range of steps, or of seconds since 1970, including both ends.
struct AxisRange {
  RunAxis axis = RunAxis::kStep;
  double from = 0;
  double to = 0;

  bool contains(int64_t step, double time) const {
    const double x = axis == RunAxis::kStep ? static_cast<double>(step) : time;
    return from <= x && x <= to;
  }
};

class ValueIndex {
 public:
  static constexpr size_t kMaxBlocks = 1024;
  static constexpr size_t kMaxCuts = 1024;

  /// Adds a line with values, which follows all other lines.
  void add(off_t begin, off_t end, int64_t step, double time);
  /// Records that the run resumed at `offset`: earlier lines with this step or
  /// a later one do not count.
  void cut(off_t offset, int64_t step);
  /// Whether the values of this line count.
  bool is_live(off_t offset, int64_t step) const;
  /// The stretches of the file that contain all values of the range.
  std::vector<std::pair<off_t, off_t>> stretches(const AxisRange& range) const;

 private:
  struct Block {
    off_t begin = 0;
    off_t end = 0;
    int64_t low_step = 0;
    int64_t high_step = 0;
    double low_time = 0;
    double high_time = 0;
    int64_t count = 1;

    void merge(const Block& next);
  };
  struct Cut {
    off_t offset = 0;
    int64_t step = 0;
  };

  Thinned<Block> blocks_{kMaxBlocks};
  /// Offsets and steps ascend. A cut is dropped when a later one has a lower or
  /// equal step, because that one covers it.
  std::vector<Cut> cuts_;
};

} // namespace accelerate
