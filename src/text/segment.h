// SPDX-License-Identifier: Apache-2.0
// A section of text with the origin of each of its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::text {

/// Valid UTF-8 with, for each byte, the index of its code point in the original
/// text. Borrowed.
struct Segment {
  std::string_view text;
  /// One entry per byte, or null if the text is unchanged ASCII: byte i comes
  /// from code point `first + i`.
  const int32_t* sources = nullptr;
  int32_t first = 0;

  int32_t source(size_t byte) const {
    return sources != nullptr ? sources[byte]
                              : first + static_cast<int32_t>(byte);
  }

  Segment sub(size_t begin, size_t end) const {
    return {
        text.substr(begin, end - begin),
        sources != nullptr ? sources + begin : nullptr,
        first + static_cast<int32_t>(begin)};
  }
};

/// A segment that owns its bytes.
struct SegmentBuffer {
  std::string text;
  std::vector<int32_t> sources;

  Segment view() const { return {text, sources.data(), 0}; }
  void clear() {
    text.clear();
    sources.clear();
  }
};

} // namespace accelerate::text
