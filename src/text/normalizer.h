// SPDX-License-Identifier: Apache-2.0
// The first step: cleaning, accents, case.
#pragma once

#include <cstdint>
#include <vector>

#include "text/segment.h"

namespace accelerate::text {

/// What a tokenizer.json asks for, in the order in which it is done.
enum class NormalizerStep {
  kClean,           // remove control characters, one kind of space
  kSpaceChinese,    // spaces around Chinese characters
  kDecompose,       // NFD
  kStripNonspacing, // remove accents
  kLowercase,
};

/// Memory that is used again from call to call.
struct NormalizerScratch {
  struct Point {
    char32_t c;
    int32_t source;
  };
  SegmentBuffer result;
  std::vector<Point> points;
  std::vector<Point> next;
};

/// Applies steps and keeps track of where each byte comes from. Immutable.
class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps);

  bool is_empty() const { return steps_.empty(); }
  /// The result borrows from `scratch` (or is `segment` itself).
  Segment apply(const Segment& segment, NormalizerScratch& scratch) const;

 private:
  bool apply_to_ascii(const Segment& segment, NormalizerScratch& scratch) const;

  std::vector<NormalizerStep> steps_;
  /// What each ASCII character becomes; 0 where it is removed.
  std::vector<char> ascii_;
};

} // namespace accelerate::text
