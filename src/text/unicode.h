// SPDX-License-Identifier: Apache-2.0
// Properties of code points, as defined by the Rust library behind the Python
// package.
//
// ICU provides them. `unicode_differences.inc`, which
// tools/make_unicode_differences.py writes, corrects the code points for which
// ICU and the Rust library differ.
#pragma once

#include <array>
#include <cstdint>

namespace accelerate::text {

/// Properties of a code point, as bits. The Rust library uses tables of
/// different Unicode versions, so some properties appear twice.
enum class CharClass : uint16_t {
  kWhitespace = 1,  // White_Space
  kControl = 2,     // what BERT's cleaning removes
  kNonspacing = 4,  // what stripping accents removes
  kPunctuation = 8, // what BERT splits off
  kLetter = 16,     // \p{L} of the split patterns
  kNumber = 32,     // \p{N}
  kSpace = 64,      // \s
  kWord = 128,      // \w around added tokens
  kCombining = 256, // reordered into canonical order
};

struct CharClasses {
  uint16_t bits = 0;

  bool has(CharClass c) const { return (bits & static_cast<uint16_t>(c)) != 0; }
  bool has_any(CharClass a, CharClass b) const {
    return (bits & (static_cast<uint16_t>(a) | static_cast<uint16_t>(b))) != 0;
  }
  void set(CharClass c, bool value) {
    const auto bit = static_cast<uint16_t>(c);
    bits = static_cast<uint16_t>(value ? bits | bit : bits & ~bit);
  }
};

/// Covers planes 0 and 1, which contain nearly all text.
constexpr char32_t kNumTabulated = 0x20000;
struct ClassTable {
  std::array<CharClasses, kNumTabulated> of;
};
/// Created on the first call, in a few milliseconds. Thread-safe.
const ClassTable& class_table();
CharClasses computed_classes(char32_t c);

inline CharClasses classes(char32_t c) {
  static const ClassTable& table = class_table();
  return c < kNumTabulated ? table.of[c] : computed_classes(c);
}

/// Up to four code points.
struct CodePoints {
  std::array<char32_t, 4> points = {};
  int count = 0;
};

/// Full lowercase, without context.
CodePoints lowercase(char32_t c);
/// Full canonical decomposition.
CodePoints decompose(char32_t c);
/// Canonical combining class.
int combining_class(char32_t c);

/// The blocks that BERT treats as Chinese characters.
bool is_chinese(char32_t c);

} // namespace accelerate::text
