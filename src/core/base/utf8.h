// SPDX-License-Identifier: Apache-2.0
// UTF-8 validation.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

struct Utf8Sequence {
  /// Bytes of a character, or of the longest valid prefix of one (at least 1).
  size_t length;
  bool is_valid;
};

/// The sequence at `at`. Overlong forms, surrogates and code points above
/// U+10FFFF are not valid.
ACCELERATE_INTERNAL Utf8Sequence
utf8_sequence_at(std::string_view text, size_t at);

/// The position of the first non-ASCII byte from `at` on, or the size of the
/// text if all of these bytes are ASCII.
ACCELERATE_INTERNAL size_t end_of_ascii(std::string_view text, size_t at = 0);

/// The position of the first byte that is not part of a character. Empty if
/// there is none.
ACCELERATE_INTERNAL std::optional<size_t> find_invalid_utf8(
    std::string_view text);

} // namespace accelerate
