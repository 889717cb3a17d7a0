// SPDX-License-Identifier: Apache-2.0
// What c10d's exceptions say, and how they are passed on.
#pragma once

#include <chrono>
#include <string>
#include <thread>

namespace accelerate {

/// c10d's messages go on with a C++ stack: one line is what a person wants.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

inline bool is_timeout(const std::string& message) {
  return message.find("imed out") != std::string::npos ||
         message.find("timeout") != std::string::npos;
}

/// Whoever starts the processes takes the first that ends for the culprit: the
/// rank that really failed gets the time to be it.
inline void give_culprit_time() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

} // namespace accelerate
