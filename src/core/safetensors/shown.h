// SPDX-License-Identifier: Apache-2.0
// Names from files, safe for messages.
#pragma once

#include <string>
#include <string_view>

namespace accelerate::safetensors {

/// `name` in quotes, on one line, truncated: it may come from a hostile file.
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
