// SPDX-License-Identifier: Apache-2.0
// A series of any length, summarised in a bounded number of points.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace accelerate {

/// `Point` has `int64_t count`, the number of values it summarises, and
/// `merge(const Point&)`, which adds the next point. When there are `most`
/// points, pairs of adjacent points are merged, so that all summarise about the
/// same number of values.
template <class Point>
class Thinned {
 public:
  explicit Thinned(size_t most) : most_(most) {}

  void add(const Point& point) {
    if (!points_.empty() && points_.back().count < per_point_) {
      points_.back().merge(point);
      return;
    }
    if (points_.size() == most_) {
      halve();
    }
    points_.push_back(point);
  }
  template <class Condition>
  void drop_last_while(Condition condition) {
    while (!points_.empty() && condition(points_.back())) {
      points_.pop_back();
    }
  }
  const std::vector<Point>& points() const { return points_; }

 private:
  void halve() {
    size_t kept = 0;
    for (size_t i = 0; i < points_.size(); i += 2) {
      points_[kept] = points_[i];
      if (i + 1 < points_.size()) {
        points_[kept].merge(points_[i + 1]);
      }
      ++kept;
    }
    points_.resize(kept);
    per_point_ *= 2;
  }

  size_t most_;
  int64_t per_point_ = 1;
  std::vector<Point> points_;
};

} // namespace accelerate
