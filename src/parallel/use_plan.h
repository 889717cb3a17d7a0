// SPDX-License-Identifier: Apache-2.0
// In which order units are used.
#pragma once

#include <cstddef>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// What one pass has used, and what it will use next where it is like the pass
/// before it. A plain value.
class ACCELERATE_API UsePlan {
 public:
  void begin();
  /// False where `unit` was the last one used before, too.
  bool use(size_t unit);
  /// What comes next, nearest first, at most `count` units; nothing where the
  /// pass before was not like this one.
  std::vector<size_t> coming(size_t count) const;
  /// The last units used, latest first, at most `count`.
  std::vector<size_t> recent(size_t count) const;
  /// The pass is over: the next one is taken to be like it.
  void end();

 private:
  std::vector<size_t> before_;
  std::vector<size_t> now_;
  /// How far in `before_`.
  size_t position_ = 0;
  bool follows_ = false;
};

} // namespace accelerate
