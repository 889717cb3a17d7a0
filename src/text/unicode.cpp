// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string_view>

namespace accelerate::text {
namespace {

struct ClassDifference {
  char32_t first;
  char32_t last;
  CharClass property;
  bool value;
};

struct MappingDifference {
  char32_t from;
  char32_t to[4];
};

#include "text/unicode_differences.inc"

// The differences were computed for Unicode 15.0; code points that only a newer
// ICU knows count as unassigned.
bool is_younger_than_differences(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > 15 || (age[0] == 15 && age[1] > 0);
}

const UNormalizer2* nfd() {
  UErrorCode error = U_ZERO_ERROR;
  static const UNormalizer2* instance = unorm2_getNFDInstance(&error);
  return instance;
}

CharClasses icu_classes(UChar32 c) {
  CharClasses found;
  if (is_younger_than_differences(c)) {
    return found;
  }
  const uint32_t type = U_GET_GC_MASK(c);
  const bool is_space = u_hasBinaryProperty(c, UCHAR_WHITE_SPACE) != 0;
  const bool is_ascii_symbol =
      c < 0x80 && std::string_view("$+<=>^`|~").find(static_cast<char>(c)) !=
                      std::string_view::npos;
  constexpr uint32_t kOther =
      U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK;
  found.set(CharClass::kWhitespace, is_space);
  found.set(CharClass::kSpace, is_space);
  found.set(
      CharClass::kControl,
      (type & kOther) != 0 && c != '\t' && c != '\n' && c != '\r');
  found.set(CharClass::kNonspacing, type == U_GC_MN_MASK);
  found.set(
      CharClass::kPunctuation, (type & U_GC_P_MASK) != 0 || is_ascii_symbol);
  found.set(CharClass::kLetter, (type & U_GC_L_MASK) != 0);
  found.set(CharClass::kNumber, (type & U_GC_N_MASK) != 0);
  found.set(
      CharClass::kWord,
      u_hasBinaryProperty(c, UCHAR_ALPHABETIC) != 0 ||
          (type & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
          u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0);
  found.set(CharClass::kCombining, unorm2_getCombiningClass(nfd(), c) != 0);
  return found;
}

template <size_t N>
const MappingDifference* find(const MappingDifference (&table)[N], char32_t c) {
  const auto* at = std::lower_bound(
      std::begin(table),
      std::end(table),
      c,
      [](const MappingDifference& entry, char32_t value) {
        return entry.from < value;
      });
  return at != std::end(table) && at->from == c ? at : nullptr;
}

CodePoints points_of(const MappingDifference& entry) {
  CodePoints result;
  while (result.count < 4 && entry.to[result.count] != 0) {
    result.points[static_cast<size_t>(result.count)] = entry.to[result.count];
    ++result.count;
  }
  return result;
}

CodePoints single(char32_t c) {
  return {{c}, 1};
}

} // namespace

CharClasses computed_classes(char32_t c) {
  CharClasses found = icu_classes(static_cast<UChar32>(c));
  for (const ClassDifference& entry : kClassDifferences) {
    if (entry.first <= c && c <= entry.last) {
      found.set(entry.property, entry.value);
    }
  }
  return found;
}

const ClassTable& class_table() {
  static const std::unique_ptr<const ClassTable> table = [] {
    auto made = std::make_unique<ClassTable>();
    for (char32_t c = 0; c < kNumTabulated; ++c) {
      made->of[c] = icu_classes(static_cast<UChar32>(c));
    }
    for (const ClassDifference& entry : kClassDifferences) {
      for (char32_t c = entry.first; c <= entry.last && c < kNumTabulated;
           ++c) {
        made->of[c].set(entry.property, entry.value);
      }
    }
    return made;
  }();
  return *table;
}

CodePoints lowercase(char32_t c) {
  if (c < 0x80) {
    return single(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  if (const auto* entry = find(kLowercaseDifferences, c)) {
    return points_of(*entry);
  }
  // The only code point with a longer lowercase form in every context.
  if (c == 0x130) {
    return {{'i', 0x307}, 2};
  }
  const auto point = static_cast<UChar32>(c);
  return single(
      is_younger_than_differences(point)
          ? c
          : static_cast<char32_t>(u_tolower(point)));
}

CodePoints decompose(char32_t c) {
  // Nothing below U+00C0 decomposes.
  if (c < 0xC0) {
    return single(c);
  }
  if (const auto* entry = find(kDecompositionDifferences, c)) {
    return points_of(*entry);
  }
  const auto point = static_cast<UChar32>(c);
  UErrorCode error = U_ZERO_ERROR;
  UChar units[16];
  const int32_t length =
      unorm2_getDecomposition(nfd(), point, units, 16, &error);
  if (length <= 0 || U_FAILURE(error) || is_younger_than_differences(point)) {
    return single(c);
  }
  CodePoints result;
  for (int32_t at = 0; at < length && result.count < 4;) {
    UChar32 next = 0;
    U16_NEXT(units, at, length, next);
    result.points[static_cast<size_t>(result.count++)] =
        static_cast<char32_t>(next);
  }
  return result;
}

int combining_class(char32_t c) {
  return classes(c).has(CharClass::kCombining)
             ? unorm2_getCombiningClass(nfd(), static_cast<UChar32>(c))
             : 0;
}

bool is_chinese(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) {
    return first <= c && c <= last;
  };
  return c >= 0x3400 &&
         (in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) ||
          in(0x2A700, 0x2B73F) || in(0x2B740, 0x2B81F) ||
          in(0x2B920, 0x2CEAF) || in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F));
}

} // namespace accelerate::text
