// SPDX-License-Identifier: Apache-2.0
// The order in which units are used.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// What one pass has used, and what it will use next if it is like the previous
/// pass. A plain value.
class ACCELERATE_INTERNAL UsePlan {
 public:
  void begin();
  /// False if `unit` was also the last one used.
  bool use(size_t unit);
  /// What comes next, nearest first, at most `count` units; empty if the
  /// previous pass was different.
  std::vector<size_t> coming(size_t count) const;
  /// The last units used, latest first, at most `count`.
  std::vector<size_t> recent(size_t count) const;
  /// The pass is over: the next one is assumed to be like it.
  void end();

 private:
  std::vector<size_t> before_;
  std::vector<size_t> now_;
  /// Position in `before_`.
  size_t position_ = 0;
  bool follows_ = false;
};

} // namespace accelerate
