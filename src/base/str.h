// SPDX-License-Identifier: Apache-2.0
// Text from values, for messages.
#pragma once

#include <sstream>
#include <string>

namespace accelerate {

/// All arguments, streamed one after the other.
template <class... Args>
std::string str_cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

} // namespace accelerate
