// SPDX-License-Identifier: Apache-2.0
#include "text/post_processor.h"

#include <algorithm>

#include "core/base/str.h"
#include "text/truncation.h"

namespace accelerate::text {
namespace {

using Kind = TemplateSlot::Kind;

size_t count_special(const std::vector<TemplateSlot>& slots) {
  size_t count = 0;
  for (const TemplateSlot& slot : slots) {
    count += slot.ids.size();
  }
  return count;
}

size_t capacity_for_text(const Truncation& truncation, size_t num_special) {
  const auto max_length = static_cast<size_t>(truncation.max_length);
  if (truncation.max_length < 0 || max_length < num_special ||
      truncation.stride < 0) {
    throw UsageError(str_cat(
        "[Tokenizer::encode] truncation.max_length is ",
        truncation.max_length,
        " and truncation.stride is ",
        truncation.stride,
        ". max_length must be at least ",
        num_special,
        ", the number of special tokens, and stride at least 0"));
  }
  return max_length - num_special;
}

// Removes the spaces at the ends of a token from its offsets. A space added
// before the first word is not in the text, so it is not removed.
TextSpan trim(TextSpan span, Blanks blanks, bool is_first, bool added_space) {
  if (blanks.leading > 0) {
    const bool is_added =
        (is_first || span.begin == 0) && added_space && blanks.leading == 1;
    const int32_t leading = is_added ? 0 : blanks.leading;
    span.begin = std::min(span.begin + leading, span.end);
  }
  if (blanks.trailing > 0 && span.end >= blanks.trailing) {
    span.end = std::max(span.end - blanks.trailing, span.begin);
  }
  return span;
}

// Appends the parts of an encoding.
class Assembler {
 public:
  Assembler(
      const PostProcessor& processor,
      const std::vector<TemplateSlot>& slots)
      : processor_(processor), slots_(slots) {}

  /// A text and the part of it to write.
  struct Section {
    const TokenSequence* sequence = nullptr;
    TokenRange range = {};
    bool is_overflow = false;
  };

  Encoding assemble(const Section& first, const Section& second) const {
    Encoding encoding;
    reserve(encoding, count_special(slots_) + size(first) + size(second));
    for (const TemplateSlot& slot : slots_) {
      if (slot.kind == Kind::kSpecial) {
        add_special(slot, encoding);
      } else {
        add_text(slot, slot.kind == Kind::kFirst ? first : second, encoding);
      }
    }
    encoding.attention_mask.assign(encoding.size(), 1);
    return encoding;
  }

 private:
  static size_t size(const Section& section) {
    return section.range.end - section.range.begin;
  }

  static void reserve(Encoding& encoding, size_t size) {
    encoding.ids.reserve(size);
    encoding.type_ids.reserve(size);
    encoding.special_tokens_mask.reserve(size);
    encoding.word_ids.reserve(size);
    encoding.offsets.reserve(size);
  }

  static void add_special(const TemplateSlot& slot, Encoding& encoding) {
    const size_t size = encoding.size() + slot.ids.size();
    encoding.ids.insert(encoding.ids.end(), slot.ids.begin(), slot.ids.end());
    encoding.type_ids.resize(size, slot.type_id);
    encoding.special_tokens_mask.resize(size, 1);
    encoding.word_ids.resize(size, -1);
    encoding.offsets.resize(size);
  }

  void add_text(
      const TemplateSlot& slot,
      const Section& section,
      Encoding& encoding) const {
    const size_t start = encoding.size();
    const size_t end = start + size(section);
    encoding.type_ids.resize(
        end, section.is_overflow ? slot.overflow_type_id : slot.type_id);
    encoding.special_tokens_mask.resize(end, 0);
    encoding.ids.resize(end);
    encoding.word_ids.resize(end);
    encoding.offsets.resize(end);
    const Token* tokens = section.sequence->tokens.data() + section.range.begin;
    for (size_t i = start; i < end; ++i) {
      const Token& token = tokens[i - start];
      encoding.ids[i] = token.id;
      encoding.word_ids[i] = token.word;
      encoding.offsets[i] = token.offsets;
    }
    for (const bool added_space : processor_.trims) {
      trim_section(section, added_space, encoding.offsets.data() + start);
    }
  }

  void trim_section(const Section& section, bool added_space, TextSpan* offsets)
      const {
    const auto& sequence = *section.sequence;
    auto added = std::lower_bound(
        sequence.added_blanks.begin(),
        sequence.added_blanks.end(),
        section.range.begin,
        [](const auto& entry, size_t index) { return entry.first < index; });
    for (size_t i = section.range.begin; i < section.range.end; ++i) {
      const bool is_added =
          added != sequence.added_blanks.end() && added->first == i;
      const Blanks blanks =
          is_added
              ? (added++)->second
              : processor_.blanks[static_cast<size_t>(sequence.tokens[i].id)];
      TextSpan& span = offsets[i - section.range.begin];
      span = trim(span, blanks, i == section.range.begin, added_space);
    }
  }

  const PostProcessor& processor_;
  const std::vector<TemplateSlot>& slots_;
};

bool is_second_before_first(const std::vector<TemplateSlot>& slots) {
  for (const TemplateSlot& slot : slots) {
    if (slot.kind != Kind::kSpecial) {
      return slot.kind == Kind::kSecond;
    }
  }
  return false;
}

// Combines each overflow of `outer` with every part of `inner`, then the kept
// part of `outer` with each overflow of `inner`.
void assemble_overflow(
    const Assembler& assembler,
    const std::vector<Assembler::Section>& outer,
    const std::vector<Assembler::Section>& inner,
    bool is_swapped,
    std::vector<Encoding>& overflowing) {
  const auto add = [&](size_t i, size_t j) {
    overflowing.push_back(
        is_swapped ? assembler.assemble(inner[j], outer[i])
                   : assembler.assemble(outer[i], inner[j]));
  };
  for (size_t i = 1; i < outer.size(); ++i) {
    for (size_t j = 0; j < inner.size(); ++j) {
      add(i, j);
    }
  }
  for (size_t j = 1; j < inner.size(); ++j) {
    add(0, j);
  }
}

std::vector<Assembler::Section> sections_of(
    const TokenSequence* sequence,
    const std::vector<TokenRange>& ranges) {
  std::vector<Assembler::Section> sections;
  for (const TokenRange& range : ranges) {
    sections.push_back({sequence, range, !sections.empty()});
  }
  return sections;
}

void pad_one(Encoding& encoding, size_t length, const Padding& padding) {
  for (Encoding& section : encoding.overflowing) {
    pad_one(section, length, padding);
  }
  if (encoding.size() >= length) {
    return;
  }
  const size_t count = length - encoding.size();
  const auto extend = [&](auto& values, auto value) {
    const bool is_left = padding.direction == TextSide::kLeft;
    values.insert(is_left ? values.begin() : values.end(), count, value);
  };
  extend(encoding.ids, padding.pad_id);
  extend(encoding.type_ids, padding.pad_type_id);
  extend(encoding.attention_mask, 0);
  extend(encoding.special_tokens_mask, 1);
  extend(encoding.word_ids, -1);
  extend(encoding.offsets, TextSpan{});
}

} // namespace

PostProcessor make_plain_post_processor() {
  PostProcessor processor;
  const TemplateSlot first{Kind::kFirst, {}, 0, 0};
  const TemplateSlot second{Kind::kSecond, {}, 1, 1};
  processor.single = processor.plain_single = {first};
  processor.pair = processor.plain_pair = {first, second};
  return processor;
}

Encoding post_process(
    const PostProcessor& processor,
    const TokenSequence& first,
    const TokenSequence* second,
    const Truncation& truncation,
    bool add_special_tokens) {
  const bool is_pair = second != nullptr;
  const auto& slots = processor.slots(is_pair, add_special_tokens);
  const Assembler assembler(processor, slots);
  const size_t second_size = is_pair ? second->tokens.size() : 0;
  if (truncation.strategy == Truncation::Strategy::kNone) {
    return assembler.assemble(
        {&first, {0, first.tokens.size()}}, {second, {0, second_size}});
  }
  const TruncatedRanges ranges = truncate(
      truncation,
      capacity_for_text(truncation, count_special(slots)),
      first.tokens.size(),
      second_size,
      is_pair);
  const auto firsts = sections_of(&first, ranges.first);
  const auto seconds = sections_of(second, ranges.second);
  Encoding encoding = assembler.assemble(firsts[0], seconds[0]);
  if (is_second_before_first(slots)) {
    assemble_overflow(assembler, seconds, firsts, true, encoding.overflowing);
  } else {
    assemble_overflow(assembler, firsts, seconds, false, encoding.overflowing);
  }
  return encoding;
}

void pad(std::span<Encoding> encodings, const Padding& padding) {
  if (padding.strategy == Padding::Strategy::kNone) {
    return;
  }
  if (padding.length < 0 || padding.multiple_of < 0) {
    throw UsageError(str_cat(
        "[Tokenizer::encode] padding.length is ",
        padding.length,
        " and padding.multiple_of is ",
        padding.multiple_of,
        ". Both must be at least 0"));
  }
  auto length = static_cast<size_t>(padding.length);
  if (padding.strategy == Padding::Strategy::kLongest) {
    length = 0;
    for (const Encoding& encoding : encodings) {
      length = std::max(length, encoding.size());
    }
  }
  const auto multiple = static_cast<size_t>(padding.multiple_of);
  if (multiple > 0) {
    length = (length + multiple - 1) / multiple * multiple;
  }
  for (Encoding& encoding : encodings) {
    pad_one(encoding, length, padding);
  }
}

} // namespace accelerate::text
