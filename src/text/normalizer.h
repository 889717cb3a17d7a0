// SPDX-License-Identifier: Apache-2.0
// The first step: cleaning, accents, case.
#pragma once

#include <cstdint>
#include <vector>

#include "text/segment.h"

namespace accelerate::text {

/// The steps of a tokenizer.json, in the order in which they are applied.
enum class NormalizerStep {
  kClean,           // remove control characters, one kind of space
  kSpaceChinese,    // spaces around Chinese characters
  kDecompose,       // NFD
  kStripNonspacing, // remove accents
  kLowercase,
};

/// Memory that is reused across calls.
struct NormalizerScratch {
  struct Point {
    char32_t c;
    int32_t source;
  };
  SegmentBuffer result;
  std::vector<Point> points;
  std::vector<Point> next;
};

/// Applies steps and keeps track of the origin of each byte. Immutable.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps);

  bool is_empty() const { return steps_.empty(); }
  /// The result is borrowed from `scratch` (or is `segment` itself).
  Segment apply(const Segment& segment, NormalizerScratch& scratch) const;

 private:
  bool apply_to_ascii(const Segment& segment, NormalizerScratch& scratch) const;

  std::vector<NormalizerStep> steps_;
  /// The replacement of each ASCII character. 0 removes the character.
  std::vector<char> ascii_;
};

} // namespace accelerate::text
