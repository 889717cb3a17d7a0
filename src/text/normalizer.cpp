// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace accelerate::text {
namespace {

using Point = NormalizerScratch::Point;
using Points = std::vector<Point>;

bool is_removed(char32_t c) {
  return c == 0 || c == 0xFFFD || classes(c).has(CharClass::kControl);
}

void clean(const Points& from, Points& to) {
  for (const Point& point : from) {
    if (!is_removed(point.c)) {
      const bool is_space = classes(point.c).has(CharClass::kWhitespace);
      to.push_back({is_space ? U' ' : point.c, point.source});
    }
  }
}

void space_chinese(const Points& from, Points& to) {
  for (const Point& point : from) {
    if (is_chinese(point.c)) {
      to.push_back({U' ', point.source});
      to.push_back(point);
      to.push_back({U' ', point.source});
    } else {
      to.push_back(point);
    }
  }
}

// A decomposed code point with its alignment in the Rust library: the first one
// of a decomposition replaces one source, the others share the previous
// position, and both stay with the code point when it is reordered.
struct Decomposed {
  char32_t c;
  bool replaces_source;
  int combining;
};

void decompose_all(const Points& from, Points& to) {
  std::vector<Decomposed> run;
  size_t num_replaced = 0;
  const auto flush = [&] {
    std::stable_sort(
        run.begin(), run.end(), [](const Decomposed& a, const Decomposed& b) {
          return a.combining < b.combining;
        });
    for (const Decomposed& entry : run) {
      num_replaced += entry.replaces_source ? 1 : 0;
      to.push_back(
          {entry.c, from[num_replaced == 0 ? 0 : num_replaced - 1].source});
    }
    run.clear();
  };
  for (const Point& point : from) {
    const CodePoints decomposed = decompose(point.c);
    for (int i = 0; i < decomposed.count; ++i) {
      const char32_t c = decomposed.points[static_cast<size_t>(i)];
      const int combining = combining_class(c);
      if (combining == 0) {
        flush();
      }
      run.push_back({c, i == 0, combining});
    }
  }
  flush();
}

void strip_nonspacing(const Points& from, Points& to) {
  for (const Point& point : from) {
    if (!classes(point.c).has(CharClass::kNonspacing)) {
      to.push_back(point);
    }
  }
}

void lowercase_all(const Points& from, Points& to) {
  for (const Point& point : from) {
    const CodePoints lower = lowercase(point.c);
    for (int i = 0; i < lower.count; ++i) {
      to.push_back({lower.points[static_cast<size_t>(i)], point.source});
    }
  }
}

void apply_step(NormalizerStep step, const Points& from, Points& to) {
  switch (step) {
    case NormalizerStep::kClean:
      return clean(from, to);
    case NormalizerStep::kSpaceChinese:
      return space_chinese(from, to);
    case NormalizerStep::kDecompose:
      return decompose_all(from, to);
    case NormalizerStep::kStripNonspacing:
      return strip_nonspacing(from, to);
    case NormalizerStep::kLowercase:
      return lowercase_all(from, to);
  }
}

} // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps)
    : steps_(std::move(steps)), ascii_(128) {
  Points before;
  Points after;
  for (char32_t c = 0; c < 128; ++c) {
    before.assign(1, {c, 0});
    for (const NormalizerStep step : steps_) {
      after.clear();
      apply_step(step, before, after);
      before.swap(after);
    }
    ascii_[c] = before.empty() ? '\0' : static_cast<char>(before[0].c);
  }
}

// Handles the usual case, in which the segment is ASCII and no step shortens
// it: bytes then keep their positions. Returns false in other cases.
bool Normalizer::apply_to_ascii(
    const Segment& segment,
    NormalizerScratch& scratch) const {
  if (segment.sources != nullptr) {
    return false;
  }
  std::string& result = scratch.result.text;
  result.resize(segment.text.size());
  bool is_complete = true;
  for (size_t i = 0; i < segment.text.size(); ++i) {
    result[i] = ascii_[static_cast<size_t>(segment.text[i])];
    is_complete &= result[i] != '\0';
  }
  return is_complete;
}

Segment Normalizer::apply(const Segment& segment, NormalizerScratch& scratch)
    const {
  if (steps_.empty()) {
    return segment;
  }
  if (apply_to_ascii(segment, scratch)) {
    return {scratch.result.text, nullptr, segment.first};
  }
  scratch.points.clear();
  for (size_t at = 0; at < segment.text.size();) {
    const int32_t source = segment.source(at);
    scratch.points.push_back({next_code_point(segment.text, at), source});
  }
  for (const NormalizerStep step : steps_) {
    scratch.next.clear();
    apply_step(step, scratch.points, scratch.next);
    scratch.points.swap(scratch.next);
  }
  scratch.result.clear();
  for (const Point& point : scratch.points) {
    append_code_point(scratch.result.text, point.c);
    scratch.result.sources.resize(scratch.result.text.size(), point.source);
  }
  return scratch.result.view();
}

} // namespace accelerate::text
