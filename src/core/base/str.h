// SPDX-License-Identifier: Apache-2.0
// Builds strings from values, for messages.
#pragma once

#include <sstream>
#include <string>

namespace accelerate {

/// Streams and concatenates all arguments.
template <class... Args>
std::string str_cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

} // namespace accelerate
