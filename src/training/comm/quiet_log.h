// SPDX-License-Identifier: Apache-2.0
// Suppresses log messages that duplicate an exception.
#pragma once

namespace accelerate {

/// c10d logs each exception of a store with a C++ stack before it throws it.
/// This is suppressed during the lifetime of this object, unless the user has
/// requested more logging from torch.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

} // namespace accelerate
