// SPDX-License-Identifier: Apache-2.0
// A hash that can be compared across machines.
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate {

/// FNV-1a. Unlike `std::hash`, it is the same in all builds.
inline uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

} // namespace accelerate
