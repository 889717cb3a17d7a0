// SPDX-License-Identifier: Apache-2.0
// Text of others, made harmless for terminals and logs.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

enum class LineEnds { kQuoted, kKept };

/// `text` with everything that could move a cursor, change colours, reorder or
/// forge a line written as `\x1b`: control characters (C0, DEL, C1), line and
/// paragraph separators, marks of writing direction, bytes that are not UTF-8.
/// A tab stays; line ends stay where they are asked for.
ACCELERATE_API std::string printable(
    std::string_view text,
    LineEnds line_ends = LineEnds::kQuoted);

} // namespace accelerate
