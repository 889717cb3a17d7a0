// SPDX-License-Identifier: Apache-2.0
#include "text/word_piece.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace accelerate::text {
namespace {

size_t count_code_points(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(
                           text.begin(), text.end(), is_continuation));
}

} // namespace

WordPiece::WordPiece(const Vocabulary& vocabulary, Settings settings)
    : ids_(vocabulary.ids()),
      settings_(std::move(settings)),
      prefix_hash_(hash_of(settings_.prefix)) {}

void WordPiece::hash_ends(
    std::string_view word,
    uint32_t begin,
    std::vector<PrefixHash>& hashes) const {
  PrefixHash hash = begin == 0 ? PrefixHash{} : prefix_hash_;
  for (size_t at = begin; at < word.size(); ++at) {
    hash.add(word[at]);
    hashes[at] = hash;
  }
}

std::span<const Piece> WordPiece::tokenize(
    std::string_view word,
    WordPieceScratch& scratch) const {
  auto& pieces = scratch.pieces;
  auto& hashes = scratch.hashes;
  const auto size = static_cast<uint32_t>(word.size());
  const Piece unknown{settings_.unknown_id, 0, size};
  pieces.clear();
  if (size > settings_.max_chars &&
      count_code_points(word) > settings_.max_chars) {
    pieces.push_back(unknown);
    return pieces;
  }
  hashes.resize(std::max<size_t>(hashes.size(), size));
  for (uint32_t begin = 0; begin < size;) {
    hash_ends(word, begin, hashes);
    const std::string_view prefix =
        begin == 0 ? std::string_view() : settings_.prefix;
    int32_t id = StringMap::kNone;
    uint32_t end = size;
    while (end > begin) {
      id = ids_.find(hashes[end - 1], prefix, word.substr(begin, end - begin));
      if (id != StringMap::kNone) {
        break;
      }
      do {
        --end;
      } while (is_continuation(word[end]));
    }
    if (id == StringMap::kNone) {
      pieces.assign(1, unknown);
      break;
    }
    pieces.push_back({id, begin, end});
    begin = end;
  }
  return pieces;
}

} // namespace accelerate::text
