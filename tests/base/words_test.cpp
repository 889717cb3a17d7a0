// SPDX-License-Identifier: Apache-2.0
#include "core/base/words.h"

#include <gtest/gtest.h>

#include <vector>

namespace accelerate {
namespace {

using Words = std::vector<std::string>;

TEST(Words, AreJoined) {
  EXPECT_EQ(join(Words{}, ","), "");
  EXPECT_EQ(join(Words{"a"}, ","), "a");
  EXPECT_EQ(join(Words{"", "b", "c"}, ", "), ", b, c");
}

TEST(Words, AreOffered) {
  EXPECT_EQ(either(Words{}), "");
  EXPECT_EQ(either(Words{"no"}), "no");
  EXPECT_EQ(either(Words{"no", "yes"}), "no or yes");
  EXPECT_EQ(either(Words{"no", "fp16", "bf16"}), "no, fp16 or bf16");
}

TEST(Words, AreTrimmed) {
  EXPECT_EQ(trimmed(" a b\t\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(trimmed(" 1\n", " \t"), "1\n");
}

} // namespace
} // namespace accelerate
