// SPDX-License-Identifier: Apache-2.0
#include "text/pipeline.h"

#include <utility>

#include "core/base/str.h"
#include "text/split.h"
#include "text/utf8.h"

namespace accelerate::text {
namespace {

using Pattern = PreTokenizer::Pattern;

// The limit exists because offsets are 32-bit numbers.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Validates the text and numbers the code points of its bytes unless all of
// them have one byte.
Segment whole_text(
    std::string_view text,
    std::vector<int32_t>& sources,
    const char* where) {
  if (text.size() > kMaxTextBytes) {
    throw UsageError(str_cat(
        "[",
        where,
        "] The text has ",
        text.size(),
        " bytes, more than the limit of ",
        kMaxTextBytes,
        ". Split it"));
  }
  if (check_utf8(text, where)) {
    return {text, nullptr, 0};
  }
  sources.resize(text.size());
  int32_t index = -1;
  for (size_t i = 0; i < text.size(); ++i) {
    index += is_continuation(text[i]) ? 0 : 1;
    sources[i] = index;
  }
  return {text, sources.data(), 0};
}

// Puts a space before `segment`, which belongs to its first code point.
Segment with_prefix_space(const Segment& segment, SegmentBuffer& buffer) {
  buffer.clear();
  buffer.text.reserve(segment.text.size() + 1);
  buffer.text += ' ';
  buffer.text += segment.text;
  buffer.sources.resize(buffer.text.size());
  buffer.sources[0] = segment.source(0);
  for (size_t i = 0; i < segment.text.size(); ++i) {
    buffer.sources[i + 1] = segment.source(i);
  }
  return buffer.view();
}

bool needs_space(const Segment& segment) {
  return !segment.text.empty() && segment.text[0] != ' ';
}

TextSpan span_of(const Segment& segment, size_t begin, size_t end) {
  return {segment.source(begin), segment.source(end - 1) + 1};
}

} // namespace

Pipeline::Pipeline(TokenizerComponents components)
    : components_(std::move(components)) {
  if (auto* model = std::get_if<WordPieceModel>(&components_.model)) {
    word_piece_.emplace(components_.vocabulary, model->settings);
  } else {
    auto& bpe = std::get<ByteBpeModel>(components_.model);
    byte_bpe_.emplace(
        components_.vocabulary, std::move(bpe.merges), bpe.settings);
  }
}

template <class Word>
void Pipeline::split(const Segment& whole, Scratch& scratch, Word&& word)
    const {
  const PreTokenizer& rules = components_.pre_tokenizer;
  const bool is_prefixed =
      rules.add_prefix_space && !rules.is_prefix_per_word && needs_space(whole);
  const Segment segment =
      is_prefixed ? with_prefix_space(whole, scratch.prefixed) : whole;
  const std::string_view text = segment.text;
  const auto cut = [&](auto&& end_of_word) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = end_of_word(at);
      const Segment section = segment.sub(at, end);
      if (rules.add_prefix_space && rules.is_prefix_per_word &&
          needs_space(section)) {
        const Segment prefixed = with_prefix_space(section, scratch.prefixed);
        word(prefixed, 0, prefixed.text.size());
      } else {
        word(segment, at, end);
      }
      at = end;
    }
  };
  switch (rules.pattern) {
    case Pattern::kBert:
      return split_bert(
          text, [&](size_t begin, size_t end) { word(segment, begin, end); });
    case Pattern::kGpt2:
      return cut([&](size_t at) { return end_of_gpt2_word(text, at); });
    case Pattern::kLlama3:
      return cut([&](size_t at) {
        return end_of_llama3_word(text, at, rules.max_digits);
      });
    case Pattern::kNone:
      return cut([&](size_t) { return text.size(); });
  }
}

template <class Added, class Plain>
void Pipeline::extract(
    const Segment& segment,
    bool normalized,
    Added&& added,
    Plain&& plain) const {
  size_t taken = 0;
  if (components_.added_tokens.has(normalized)) {
    while (const auto match =
               components_.added_tokens.find(segment.text, normalized, taken)) {
      if (taken < match->begin) {
        plain(segment.sub(taken, match->begin));
      }
      added(*match->token, segment.sub(match->begin, match->end));
      taken = match->end;
    }
  }
  if (taken < segment.text.size()) {
    plain(taken == 0 ? segment : segment.sub(taken, segment.text.size()));
  }
}

void Pipeline::tokenize_words(
    const Segment& segment,
    Scratch& scratch,
    int32_t& word_id,
    TokenSequence& result) const {
  const auto emit = [&](auto&& pieces_of) {
    return [&, pieces_of](const Segment& section, size_t begin, size_t end) {
      const std::string_view word = section.text.substr(begin, end - begin);
      for (const Piece& piece : pieces_of(word)) {
        result.tokens.push_back(
            {piece.id,
             span_of(section, begin + piece.begin, begin + piece.end),
             word_id});
      }
      ++word_id;
    };
  };
  if (word_piece_) {
    split(segment, scratch, emit([&](std::string_view word) {
            return word_piece_->tokenize(word, scratch.word_piece);
          }));
  } else {
    split(segment, scratch, emit([&](std::string_view word) {
            return byte_bpe_->tokenize(word, scratch.bpe);
          }));
  }
}

void Pipeline::tokenize(
    std::string_view text,
    Scratch& scratch,
    TokenSequence& result) const {
  result.clear();
  int32_t word_id = 0;
  const auto add = [&](const AddedToken& token, const Segment& segment) {
    if (!components_.post_processor.trims.empty()) {
      result.added_blanks.emplace_back(
          result.tokens.size(), blanks_of(segment.text));
    }
    result.tokens.push_back(
        {token.id, span_of(segment, 0, segment.text.size()), word_id++});
  };
  const Segment whole = whole_text(text, scratch.sources, "Tokenizer::encode");
  extract(whole, false, add, [&](const Segment& section) {
    const Segment clean =
        components_.normalizer.apply(section, scratch.normalizer);
    extract(clean, true, add, [&](const Segment& plain) {
      tokenize_words(plain, scratch, word_id, result);
    });
  });
}

std::string Pipeline::normalize(std::string_view text, Scratch& scratch) const {
  const Segment whole =
      whole_text(text, scratch.sources, "Tokenizer::normalize");
  return std::string(
      components_.normalizer.apply(whole, scratch.normalizer).text);
}

std::vector<TextWord> Pipeline::pre_tokenize(
    std::string_view text,
    Scratch& scratch) const {
  const Segment whole =
      whole_text(text, scratch.sources, "Tokenizer::pre_tokenize");
  std::vector<TextWord> words;
  split(whole, scratch, [&](const Segment& section, size_t begin, size_t end) {
    const std::string_view word = section.text.substr(begin, end - begin);
    words.push_back(
        {byte_bpe_ ? ByteAlphabet::instance().encode(word) : std::string(word),
         span_of(section, begin, end)});
  });
  return words;
}

} // namespace accelerate::text
