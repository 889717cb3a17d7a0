// SPDX-License-Identifier: Apache-2.0
// Handling of c10d's exceptions.
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace accelerate {

/// c10d's messages include a C++ stack after the first line.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

inline bool is_timeout(const std::string& message) {
  return message.find("imed out") != std::string::npos ||
         message.find("timeout") != std::string::npos;
}

/// The launcher takes the first process that exits for the cause of a failure,
/// so leave time for the rank that really failed.
inline void give_culprit_time() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

} // namespace accelerate
