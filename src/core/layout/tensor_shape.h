// SPDX-License-Identifier: Apache-2.0
// Element counts of shapes that may come from a damaged file.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace accelerate {

/// The product of the lengths. Empty if one is negative or the product does not
/// fit.
inline std::optional<std::int64_t> elements_of(
    const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const auto length : shape) {
    if (length < 0 || __builtin_mul_overflow(product, length, &product)) {
      return std::nullopt;
    }
  }
  return product;
}

} // namespace accelerate
