// SPDX-License-Identifier: Apache-2.0
// Silence where an exception says it all.
#pragma once

namespace accelerate {

/// c10d logs each exception of a store with a C++ stack before it throws it.
/// While one of these lives it does not, unless the user has asked torch for
/// more.
class QuietLog {
 public:
  QuietLog();
  ~QuietLog();
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

} // namespace accelerate
