// SPDX-License-Identifier: Apache-2.0
// Names from files, fit for a message.
#pragma once

#include <string>
#include <string_view>

namespace accelerate::safetensors {

/// `name` in quotes, on one line, cut where it is long: names come from files
/// that may be hostile.
inline std::string shown(std::string_view name) {
  constexpr std::size_t kMaxShown = 120;
  std::string out = "'";
  for (const char c : name.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  return out + (name.size() > kMaxShown ? "...'" : "'");
}

} // namespace accelerate::safetensors
