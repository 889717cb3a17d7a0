// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/prefetch_plan.h"

#include <algorithm>

namespace accelerate {
namespace {

template <class Iterator>
std::vector<size_t> first_distinct(Iterator begin, Iterator end, size_t count) {
  std::vector<size_t> units;
  for (auto each = begin; each != end && units.size() < count; ++each) {
    if (std::find(units.begin(), units.end(), *each) == units.end()) {
      units.push_back(*each);
    }
  }
  return units;
}

} // namespace

void PrefetchPlan::begin() {
  now_.clear();
  position_ = 0;
  follows_ = !before_.empty();
}

bool PrefetchPlan::use(size_t unit) {
  if (!now_.empty() && now_.back() == unit) {
    return false;
  }
  now_.push_back(unit);
  if (follows_) {
    // The pass may have skipped some units of the plan.
    const auto next = std::find(
        before_.begin() + static_cast<std::ptrdiff_t>(position_),
        before_.end(),
        unit);
    follows_ = next != before_.end();
    position_ = static_cast<size_t>(next - before_.begin()) + 1;
  }
  return true;
}

std::vector<size_t> PrefetchPlan::coming(size_t count) const {
  if (!now_.empty() && !follows_) {
    return {};
  }
  const auto position = now_.empty() ? 0 : position_;
  return first_distinct(
      before_.begin() + static_cast<std::ptrdiff_t>(position),
      before_.end(),
      count);
}

std::vector<size_t> PrefetchPlan::recent(size_t count) const {
  return first_distinct(now_.rbegin(), now_.rend(), count);
}

void PrefetchPlan::end() {
  before_ = std::move(now_);
  now_.clear();
  position_ = 0;
  follows_ = false;
}

} // namespace accelerate
