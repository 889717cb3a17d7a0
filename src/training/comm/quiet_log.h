// SPDX-License-Identifier: Apache-2.0
// Suppresses log messages that duplicate an exception.
#pragma once

namespace accelerate {

/// c10d logs each exception of a store with a C++ stack before it throws it.
/// This object suppresses such messages during its lifetime, unless the user
/// has requested more logging from torch.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

} // namespace accelerate
