// SPDX-License-Identifier: Apache-2.0
// Handling of c10d's exceptions.
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace accelerate {

/// The message without the C++ stack that c10d appends after the first line.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

inline bool is_timeout(const std::string& message) {
  return message.find("imed out") != std::string::npos ||
         message.find("timeout") != std::string::npos;
}

/// Waits a moment. The launcher treats the first process that exits as the
/// cause of a failure, so the rank that really failed must exit first.
inline void wait_for_first_failure() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

} // namespace accelerate
