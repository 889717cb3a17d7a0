// SPDX-License-Identifier: Apache-2.0
#include "core/base/plain_text.h"

#include <gtest/gtest.h>

#include <cctype>
#include <limits>

#include "support/other_locale.h"

namespace accelerate {
namespace {

TEST(PlainText, IsTheSameInEveryLocale) {
  const testing::OtherLocale other;
  char printed[8];
  std::snprintf(printed, sizeof(printed), "%.1f", 1.5);
  ASSERT_STREQ(printed, "1,5");
  ASSERT_EQ(std::toupper('i'), 'i');
  ASSERT_EQ(std::toupper('a'), 'A');
  ASSERT_TRUE(std::isprint('_') && std::isalpha('i') && std::isdigit('7'));
  EXPECT_EQ(fixed_point(1.5, 1), "1.5");
  EXPECT_EQ(lower_case("STATIC 1\xc4\xb0"), "static 1\xc4\xb0");
  EXPECT_EQ(upper_case("5 gib\xc4\xb1"), "5 GIB\xc4\xb1");
}

TEST(PlainText, HasRoomForEveryNumber) {
  EXPECT_EQ(fixed_point(-0.0005, 3), "-0.001");
  EXPECT_EQ(fixed_point(1e6, 0), "1000000");
  EXPECT_EQ(
      fixed_point(-std::numeric_limits<double>::max(), 6).size(), 1 + 309 + 7);
}

} // namespace
} // namespace accelerate
