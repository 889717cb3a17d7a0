// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "text/readers.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace accelerate::text {
namespace {

nlohmann::json parse(std::string_view json, const std::string& name) {
  try {
    return nlohmann::json::parse(json);
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(
        str_cat("[Tokenizer] ", name, " is not valid JSON: ", e.what()));
  }
}

TextSide read_side(const JsonPart& part) {
  if (part.text() != "Left" && part.text() != "Right") {
    part.refuse(str_cat("is '", part.text(), "', expected Left or Right"));
  }
  return part.text() == "Left" ? TextSide::kLeft : TextSide::kRight;
}

Truncation read_truncation(const JsonPart& part) {
  part.allow_keys({"direction", "max_length", "strategy", "stride"});
  Truncation result;
  result.max_length = part.at("max_length").number(INT32_MAX);
  result.stride = part.at("stride").number(INT32_MAX);
  if (part.has("direction")) {
    result.direction = read_side(part.at("direction"));
  }
  const JsonPart strategy_part = part.at("strategy");
  const std::string& strategy = strategy_part.text();
  if (strategy == "OnlyFirst") {
    result.strategy = Truncation::Strategy::kOnlyFirst;
  } else if (strategy == "OnlySecond") {
    result.strategy = Truncation::Strategy::kOnlySecond;
  } else if (strategy != "LongestFirst") {
    strategy_part.refuse(
        str_cat("is '", strategy, "', which is not supported"));
  }
  return result;
}

Padding read_padding(const JsonPart& part) {
  part.allow_keys(
      {"strategy",
       "direction",
       "pad_to_multiple_of",
       "pad_id",
       "pad_type_id",
       "pad_token"});
  Padding result;
  const JsonPart strategy = part.at("strategy");
  if (strategy.value().is_object()) {
    strategy.allow_keys({"Fixed"});
    result.strategy = Padding::Strategy::kFixed;
    result.length = strategy.at("Fixed").number(INT32_MAX);
  } else if (strategy.text() != "BatchLongest") {
    strategy.refuse(
        str_cat("is '", strategy.text(), "', which is not supported"));
  }
  result.direction = read_side(part.at("direction"));
  if (part.has("pad_to_multiple_of")) {
    result.multiple_of = part.at("pad_to_multiple_of").number(1 << 20);
  }
  result.pad_id = part.at("pad_id").number(kMaxTokenId);
  result.pad_type_id = part.at("pad_type_id").number(1 << 30);
  return result;
}

AddedToken read_added_token(const JsonPart& part) {
  part.allow_keys(
      {"id",
       "content",
       "single_word",
       "lstrip",
       "rstrip",
       "normalized",
       "special"});
  AddedToken token;
  token.content = part.at("content").text();
  token.id = part.at("id").number(kMaxTokenId);
  token.single_word = part.at("single_word").boolean();
  token.lstrip = part.at("lstrip").boolean();
  token.rstrip = part.at("rstrip").boolean();
  token.normalized = part.at("normalized").boolean();
  token.special = part.at("special").boolean();
  return token;
}

std::vector<AddedToken> read_added_tokens(const JsonPart& part) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < part.array_size(); ++i) {
    tokens.push_back(read_added_token(part.at(i)));
  }
  return tokens;
}

Decoder read_decoder(const JsonPart& part) {
  Decoder decoder;
  if (part.type() == "WordPiece") {
    part.allow_keys({"type", "prefix", "cleanup"});
    decoder.kind = Decoder::Kind::kWordPiece;
    decoder.prefix = part.at("prefix").text();
    decoder.cleanup = part.at("cleanup").boolean();
  } else if (part.type() == "ByteLevel") {
    part.allow_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    decoder.kind = Decoder::Kind::kByteLevel;
  } else {
    part.refuse_type("WordPiece and ByteLevel");
  }
  return decoder;
}

// The string to match: the content, normalised if requested.
std::string pattern_of(const AddedToken& token, const TokenizerParts& parts) {
  if (!token.normalized || parts.normalizer.is_empty()) {
    return token.content;
  }
  SegmentBuffer buffer;
  buffer.text = token.content;
  buffer.sources.assign(token.content.size(), 0);
  NormalizerScratch scratch;
  return std::string(parts.normalizer.apply(buffer.view(), scratch).text);
}

} // namespace

void add_tokens(
    TokenizerParts& parts,
    std::vector<AddedToken> tokens,
    const std::string& name) {
  auto next_id = static_cast<int32_t>(parts.vocabulary.size());
  for (AddedToken& token : tokens) {
    if (token.content.empty() ||
        parts.added_tokens.find_content(token.content) != nullptr) {
      continue;
    }
    const int32_t known = parts.vocabulary.id(token.content);
    token.id = known != StringMap::kNone ? known : next_id++;
    token.pattern = pattern_of(token, parts);
    const std::string content = token.content;
    if (!parts.added_tokens.add(std::move(token))) {
      throw ConfigError(str_cat(
          "[Tokenizer] ",
          name,
          ": The added token '",
          content,
          "' equals another added token after normalization. Remove one of "
          "them"));
    }
  }
}

Blanks blanks_of(std::string_view token) {
  const char32_t space = ByteAlphabet::instance().character(' ');
  const auto is_blank = [&](char32_t c) {
    return c == space || classes(c).has(CharClass::kWhitespace);
  };
  Blanks blanks;
  for (size_t at = 0; at < token.size(); ++blanks.leading) {
    if (!is_blank(next_code_point(token, at))) {
      break;
    }
  }
  for (size_t end = token.size(); end > 0; ++blanks.trailing) {
    if (!is_blank(previous_code_point(token, end))) {
      break;
    }
  }
  return blanks;
}

void count_blanks(TokenizerParts& parts) {
  if (parts.post_processor.trims.empty()) {
    return;
  }
  auto& blanks = parts.post_processor.blanks;
  blanks.resize(static_cast<size_t>(parts.vocabulary.id_end()));
  for (int32_t id = 0; id < parts.vocabulary.id_end(); ++id) {
    if (const std::string* token = parts.vocabulary.token(id)) {
      blanks[static_cast<size_t>(id)] = blanks_of(*token);
    }
  }
}

TokenizerParts read_tokenizer_json(
    std::string_view json,
    const std::string& name) {
  const nlohmann::json document = parse(json, name);
  const JsonPart root(document, name);
  root.allow_keys(
      {"version",
       "truncation",
       "padding",
       "added_tokens",
       "normalizer",
       "pre_tokenizer",
       "post_processor",
       "decoder",
       "model"});
  if (root.has("version") && root.at("version").text() != "1.0") {
    root.at("version").refuse(str_cat(
        "is '", root.at("version").text(), "', but only 1.0 is supported"));
  }
  TokenizerParts parts;
  read_model(root.at("model"), parts);
  if (root.has("normalizer")) {
    read_normalizer(root.at("normalizer"), parts);
  }
  read_pre_tokenizer(root.at("pre_tokenizer"), parts);
  if (root.has("post_processor")) {
    read_post_processor(root.at("post_processor"), parts);
  }
  if (root.has("decoder")) {
    parts.decoder = read_decoder(root.at("decoder"));
  }
  if (root.has("truncation")) {
    parts.truncation = read_truncation(root.at("truncation"));
  }
  if (root.has("padding")) {
    parts.padding = read_padding(root.at("padding"));
  }
  if (root.has("added_tokens")) {
    add_tokens(parts, read_added_tokens(root.at("added_tokens")), name);
  }
  count_blanks(parts);
  return parts;
}

} // namespace accelerate::text
