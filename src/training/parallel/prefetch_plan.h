// SPDX-License-Identifier: Apache-2.0
// The order in which units are used.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// The units that one pass has used, and those that it will use next if it is
/// like the previous pass.
class ACCELERATE_INTERNAL PrefetchPlan {
 public:
  void begin();
  /// Records a use. Returns false if `unit` was also the last one used.
  bool use(size_t unit);
  /// The next units to be used, nearest first, at most `count`. Empty if this
  /// pass differs from the previous one.
  std::vector<size_t> coming(size_t count) const;
  /// The last units used, latest first, at most `count`.
  std::vector<size_t> recent(size_t count) const;
  /// Ends the pass. The next pass is assumed to be like it.
  void end();

 private:
  std::vector<size_t> before_;
  std::vector<size_t> now_;
  /// The current position in `before_`.
  size_t position_ = 0;
  bool follows_ = false;
};

} // namespace accelerate
