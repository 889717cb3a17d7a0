// SPDX-License-Identifier: Apache-2.0
#include "core/base/printable.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(Printable, KeepsTextOfAnyLanguage) {
  for (const char* text : {"", "node-1 (8 x H200)\tok", "Größe 日本 🚀"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("\x1b[2Jgone\a"), "\\x1b[2Jgone\\x07");
  EXPECT_EQ(printable("a\r\n[launch] forged"), "a\\x0d\\x0a[launch] forged");
  EXPECT_EQ(printable("\x7f"), "\\x7f");
  // CSI as one C1 character, a right-to-left override, a line separator.
  EXPECT_EQ(
      printable("\xc2\x9b"
                "31m"),
      "\\xc2\\x9b31m");
  EXPECT_EQ(
      printable("\xe2\x80\xae"
                "txt"),
      "\\xe2\\x80\\xaetxt");
  EXPECT_EQ(printable("\xe2\x80\xa8"), "\\xe2\\x80\\xa8");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

TEST(Printable, QuotesBytesThatAreNotUtf8) {
  EXPECT_EQ(
      printable("\x9b"
                "31m"),
      "\\x9b31m");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");          // Overlong.
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80"); // A surrogate.
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, KeepsLineEndsIfRequested) {
  EXPECT_EQ(printable("a\nb\x1b", LineEnds::kKept), "a\nb\\x1b");
}

} // namespace
} // namespace accelerate
