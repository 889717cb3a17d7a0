// SPDX-License-Identifier: Apache-2.0
#include "text/decoder.h"

#include <string_view>
#include <utility>

#include "text/byte_bpe.h"
#include "text/utf8.h"

namespace accelerate::text {
namespace {

void replace_all(
    std::string& text,
    std::string_view from,
    std::string_view to) {
  size_t at = 0;
  while ((at = text.find(from, at)) != std::string::npos) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

// The replacements in the order of the Rust library.
constexpr std::pair<std::string_view, std::string_view> kCleanups[] = {
    {" .", "."},
    {" ?", "?"},
    {" !", "!"},
    {" ,", ","},
    {" ' ", "'"},
    {" n't", "n't"},
    {" 'm", "'m"},
    {" do not", " don't"},
    {" 's", "'s"},
    {" 've", "'ve"},
    {" 're", "'re"},
};

std::string decode_word_piece(
    const std::vector<std::string>& tokens,
    const std::string& prefix,
    bool cleanup) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string piece = tokens[i];
    if (i > 0) {
      piece =
          piece.starts_with(prefix) ? piece.substr(prefix.size()) : " " + piece;
    }
    for (const auto& [from, to] : kCleanups) {
      if (cleanup) {
        replace_all(piece, from, to);
      }
    }
    text += piece;
  }
  return text;
}

std::string decode_byte_level(const std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    bytes += ByteAlphabet::instance().decode(token).value_or(token);
  }
  return replace_invalid_utf8(bytes);
}

} // namespace

std::string Decoder::decode(const std::vector<std::string>& tokens) const {
  switch (kind) {
    case Kind::kWordPiece:
      return decode_word_piece(tokens, prefix, cleanup);
    case Kind::kByteLevel:
      return decode_byte_level(tokens);
    case Kind::kJoin:
      break;
  }
  std::string text;
  for (const std::string& token : tokens) {
    text += (text.empty() && &token == &tokens.front() ? "" : " ") + token;
  }
  return text;
}

} // namespace accelerate::text
