// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace accelerate::text {
namespace {

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  const auto is_word = [](char32_t c) {
    return classes(c).has(CharClass::kWord);
  };
  if (begin > 0) {
    size_t before = begin;
    if (is_word(previous_code_point(text, before))) {
      return false;
    }
  }
  return end == text.size() || !is_word(next_code_point(text, end));
}

size_t skip_spaces_left(std::string_view text, size_t begin) {
  while (begin > 0) {
    size_t before = begin;
    if (!classes(previous_code_point(text, before))
             .has(CharClass::kWhitespace)) {
      break;
    }
    begin = before;
  }
  return begin;
}

size_t skip_spaces_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    size_t behind = end;
    if (!classes(next_code_point(text, behind)).has(CharClass::kWhitespace)) {
      break;
    }
    end = behind;
  }
  return end;
}

} // namespace

bool TokenFinder::add(std::string_view pattern, size_t token) {
  if (pattern.empty()) {
    return true;
  }
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  size_t node = 0;
  for (const char byte : pattern) {
    const auto [at, is_new] =
        nodes_[node].next.try_emplace(byte, nodes_.size());
    node = at->second;
    if (is_new) {
      nodes_.emplace_back();
    }
  }
  if (nodes_[node].token != kNoToken) {
    return false;
  }
  nodes_[node].token = static_cast<int64_t>(token);
  return true;
}

std::optional<TokenFinder::Match> TokenFinder::find(
    std::string_view text,
    size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) {
      continue;
    }
    std::optional<Match> longest;
    size_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto next = nodes_[node].next.find(text[at]);
      if (next == nodes_[node].next.end()) {
        break;
      }
      node = next->second;
      if (nodes_[node].token != kNoToken) {
        longest = {begin, at + 1, static_cast<size_t>(nodes_[node].token)};
      }
    }
    if (longest) {
      return longest;
    }
  }
  return std::nullopt;
}

bool AddedTokens::add(AddedToken token) {
  const size_t index = tokens_.size();
  by_id_[token.id] = index;
  by_content_[token.content] = index;
  TokenFinder& finder = token.normalized ? in_normalized_ : in_original_;
  tokens_.push_back(std::move(token));
  return finder.add(tokens_.back().pattern, index);
}

const AddedToken* AddedTokens::find_id(int32_t id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : &tokens_[at->second];
}

const AddedToken* AddedTokens::find_content(std::string_view content) const {
  const auto at = by_content_.find(std::string(content));
  return at == by_content_.end() ? nullptr : &tokens_[at->second];
}

std::optional<AddedTokenMatch>
AddedTokens::find(std::string_view text, bool normalized, size_t taken) const {
  size_t from = taken;
  while (const auto match = finder(normalized).find(text, from)) {
    const AddedToken& token = tokens_[match->token];
    from = match->end;
    if (token.single_word && !is_single_word(text, match->begin, match->end)) {
      continue;
    }
    const size_t begin =
        token.lstrip ? std::max(skip_spaces_left(text, match->begin), taken)
                     : match->begin;
    const size_t end =
        token.rstrip ? skip_spaces_right(text, match->end) : match->end;
    return AddedTokenMatch{begin, end, &token};
  }
  return std::nullopt;
}

} // namespace accelerate::text
