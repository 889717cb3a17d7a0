// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

namespace accelerate::testing {

/// Runs all tests: returns 0 if they pass, 1 if one fails, and 77, which CTest
/// shows as skipped, if all of them were skipped.
inline int run_tests() {
  const int result = RUN_ALL_TESTS();
  const auto& tests = *::testing::UnitTest::GetInstance();
  const bool is_skipped =
      tests.successful_test_count() == 0 && tests.skipped_test_count() > 0;
  return result == 0 && is_skipped ? 77 : result;
}

} // namespace accelerate::testing
