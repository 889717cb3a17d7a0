// SPDX-License-Identifier: Apache-2.0
// Is this UTF-8?
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

struct Utf8Sequence {
  /// Bytes of a character, or of the longest start of one (at least 1).
  size_t length;
  bool is_valid;
};

/// What stands at `at` of a text that goes on there. Overlong forms,
/// surrogates and what is above U+10FFFF are no characters.
ACCELERATE_API Utf8Sequence utf8_sequence_at(std::string_view text, size_t at);

/// The first byte from `at` on that is not ASCII; the size of the text where
/// there is none.
ACCELERATE_API size_t end_of_ascii(std::string_view text, size_t at = 0);

/// Where the first byte is that is not part of a character; nothing where all
/// are.
ACCELERATE_API std::optional<size_t> find_invalid_utf8(std::string_view text);

} // namespace accelerate
