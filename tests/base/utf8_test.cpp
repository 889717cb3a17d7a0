// SPDX-License-Identifier: Apache-2.0
#include "core/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace accelerate {
namespace {

TEST(Utf8, FindsInvalidSequences) {
  const std::pair<std::string, std::optional<size_t>> cases[] = {
      {"", std::nullopt},
      {"plain ascii, longer than eight", std::nullopt},
      {"\xC3\xBC\xE9\x87\x8D\xF0\x9F\xA4\x97\xF4\x8F\xBF\xBF", std::nullopt},
      {"\xED\x9F\xBF\xEE\x80\x80", std::nullopt},
      {"12345678\x80", 8},
      {"a\xC0\x80", 1}, // Overlong.
      {"\xC1\xBF", 0},
      {"\xE0\x9F\xBF", 0},
      {"\xF0\x8F\xBF\xBF", 0},
      {"\xED\xA0\x80", 0},     // Surrogate.
      {"\xF4\x90\x80\x80", 0}, // Above U+10FFFF.
      {"\xF5\x80\x80\x80", 0},
      {"ab\xC3", 2}, // Cut off.
      {"\xE9\x87", 0},
      {"\xE9\x87z", 0},
      {"\xF0\x9F\xA4", 0},
  };
  for (const auto& [text, at] : cases) {
    EXPECT_EQ(find_invalid_utf8(text), at) << text;
  }
}

TEST(Utf8, EndsAsciiAtTheFirstByteAboveIt) {
  EXPECT_EQ(end_of_ascii(""), 0u);
  EXPECT_EQ(end_of_ascii("plain ascii, longer than eight"), 30u);
  EXPECT_EQ(end_of_ascii("12345678\xC3\xBC"), 8u);
  EXPECT_EQ(
      end_of_ascii(
          "\xC3\xBC"
          "abc\xC3\xBC",
          2),
      5u);
}

TEST(Utf8, MeasuresTheLongestStartOfACharacter) {
  EXPECT_EQ(utf8_sequence_at("a\xF0\x9F\xA4z", 1).length, 3u);
  EXPECT_FALSE(utf8_sequence_at("a\xF0\x9F\xA4z", 1).is_valid);
  EXPECT_EQ(utf8_sequence_at("\xE9\x87\x8D", 0).length, 3u);
  EXPECT_TRUE(utf8_sequence_at("\xE9\x87\x8D", 0).is_valid);
}

} // namespace
} // namespace accelerate
