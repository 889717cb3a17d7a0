// SPDX-License-Identifier: Apache-2.0
// Makes foreign text safe for terminals and logs.
#pragma once

#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

enum class LineEnds { kQuoted, kKept };

/// Returns `text` with all characters escaped (as `\x1b`) that could move the
/// cursor, change colours, reorder text or forge a line. These are control
/// characters (C0, DEL, C1), line and paragraph separators, bidirectional
/// marks, and bytes that are not UTF-8. Tabs are kept. Line ends are kept if
/// requested.
ACCELERATE_INTERNAL std::string printable(
    std::string_view text,
    LineEnds line_ends = LineEnds::kQuoted);

} // namespace accelerate
