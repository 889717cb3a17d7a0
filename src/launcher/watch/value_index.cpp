// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/value_index.h"

#include <algorithm>

namespace accelerate {

void ValueIndex::Block::merge(const Block& next) {
  end = next.end;
  low_step = std::min(low_step, next.low_step);
  high_step = std::max(high_step, next.high_step);
  low_time = std::min(low_time, next.low_time);
  high_time = std::max(high_time, next.high_time);
  count += next.count;
}

void ValueIndex::add(off_t begin, off_t end, int64_t step, double time) {
  blocks_.add(
      {.begin = begin,
       .end = end,
       .low_step = step,
       .high_step = step,
       .low_time = time,
       .high_time = time});
}

void ValueIndex::cut(off_t offset, int64_t step) {
  while (!cuts_.empty() && cuts_.back().step >= step) {
    cuts_.pop_back();
  }
  if (cuts_.size() == kMaxCuts) {
    cuts_.erase(cuts_.begin());
  }
  cuts_.push_back({offset, step});
}

bool ValueIndex::is_live(off_t offset, int64_t step) const {
  const auto next = std::upper_bound(
      cuts_.begin(), cuts_.end(), offset, [](off_t line, const Cut& cut) {
        return line < cut.offset;
      });
  return next == cuts_.end() || step < next->step;
}

std::vector<std::pair<off_t, off_t>> ValueIndex::stretches(
    const AxisRange& range) const {
  std::vector<std::pair<off_t, off_t>> found;
  for (const auto& block : blocks_.points()) {
    const bool is_step = range.axis == RunAxis::kStep;
    const double low =
        is_step ? static_cast<double>(block.low_step) : block.low_time;
    const double high =
        is_step ? static_cast<double>(block.high_step) : block.high_time;
    if (high < range.from || low > range.to) {
      continue;
    }
    if (!found.empty() && found.back().second == block.begin) {
      found.back().second = block.end;
    } else {
      found.emplace_back(block.begin, block.end);
    }
  }
  return found;
}

} // namespace accelerate
