// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace accelerate::testing {

/// Whether `./dev test long` runs: tests repeat things in full then, and a few
/// times otherwise.
inline bool is_long_run() {
  return std::getenv("ACCELERATE_TEST_LONG") != nullptr;
}

} // namespace accelerate::testing
