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

TextSide read_side(const JsonNode& node) {
  if (node.text() != "Left" && node.text() != "Right") {
    node.refuse(str_cat("is '", node.text(), "', expected Left or Right"));
  }
  return node.text() == "Left" ? TextSide::kLeft : TextSide::kRight;
}

Truncation read_truncation(const JsonNode& node) {
  node.allow_keys({"direction", "max_length", "strategy", "stride"});
  Truncation result;
  result.max_length = node.at("max_length").number(INT32_MAX);
  result.stride = node.at("stride").number(INT32_MAX);
  if (node.has("direction")) {
    result.direction = read_side(node.at("direction"));
  }
  const JsonNode strategy_node = node.at("strategy");
  const std::string& strategy = strategy_node.text();
  if (strategy == "OnlyFirst") {
    result.strategy = Truncation::Strategy::kOnlyFirst;
  } else if (strategy == "OnlySecond") {
    result.strategy = Truncation::Strategy::kOnlySecond;
  } else if (strategy != "LongestFirst") {
    strategy_node.refuse(
        str_cat("is '", strategy, "', which is not supported"));
  }
  return result;
}

Padding read_padding(const JsonNode& node) {
  node.allow_keys(
      {"strategy",
       "direction",
       "pad_to_multiple_of",
       "pad_id",
       "pad_type_id",
       "pad_token"});
  Padding result;
  const JsonNode strategy = node.at("strategy");
  if (strategy.value().is_object()) {
    strategy.allow_keys({"Fixed"});
    result.strategy = Padding::Strategy::kFixed;
    result.length = strategy.at("Fixed").number(INT32_MAX);
  } else if (strategy.text() != "BatchLongest") {
    strategy.refuse(
        str_cat("is '", strategy.text(), "', which is not supported"));
  }
  result.direction = read_side(node.at("direction"));
  if (node.has("pad_to_multiple_of")) {
    result.multiple_of = node.at("pad_to_multiple_of").number(1 << 20);
  }
  result.pad_id = node.at("pad_id").number(kMaxTokenId);
  result.pad_type_id = node.at("pad_type_id").number(1 << 30);
  return result;
}

AddedToken read_added_token(const JsonNode& node) {
  node.allow_keys(
      {"id",
       "content",
       "single_word",
       "lstrip",
       "rstrip",
       "normalized",
       "special"});
  AddedToken token;
  token.content = node.at("content").text();
  token.id = node.at("id").number(kMaxTokenId);
  token.single_word = node.at("single_word").boolean();
  token.lstrip = node.at("lstrip").boolean();
  token.rstrip = node.at("rstrip").boolean();
  token.normalized = node.at("normalized").boolean();
  token.special = node.at("special").boolean();
  return token;
}

std::vector<AddedToken> read_added_tokens(const JsonNode& node) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < node.array_size(); ++i) {
    tokens.push_back(read_added_token(node.at(i)));
  }
  return tokens;
}

Decoder read_decoder(const JsonNode& node) {
  Decoder decoder;
  if (node.type() == "WordPiece") {
    node.allow_keys({"type", "prefix", "cleanup"});
    decoder.kind = Decoder::Kind::kWordPiece;
    decoder.prefix = node.at("prefix").text();
    decoder.cleanup = node.at("cleanup").boolean();
  } else if (node.type() == "ByteLevel") {
    node.allow_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    decoder.kind = Decoder::Kind::kByteLevel;
  } else {
    node.refuse_type("WordPiece and ByteLevel");
  }
  return decoder;
}

// The string to match: the content, normalised if requested.
std::string pattern_of(
    const AddedToken& token,
    const TokenizerComponents& components) {
  if (!token.normalized || components.normalizer.is_empty()) {
    return token.content;
  }
  SegmentBuffer buffer;
  buffer.text = token.content;
  buffer.sources.assign(token.content.size(), 0);
  NormalizerScratch scratch;
  return std::string(components.normalizer.apply(buffer.view(), scratch).text);
}

} // namespace

void add_tokens(
    TokenizerComponents& components,
    std::vector<AddedToken> tokens,
    const std::string& name) {
  auto next_id = static_cast<int32_t>(components.vocabulary.size());
  for (AddedToken& token : tokens) {
    if (token.content.empty() ||
        components.added_tokens.find_content(token.content) != nullptr) {
      continue;
    }
    const int32_t known = components.vocabulary.id(token.content);
    token.id = known != StringMap::kNone ? known : next_id++;
    token.pattern = pattern_of(token, components);
    const std::string content = token.content;
    if (!components.added_tokens.add(std::move(token))) {
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

void count_blanks(TokenizerComponents& components) {
  if (components.post_processor.trims.empty()) {
    return;
  }
  auto& blanks = components.post_processor.blanks;
  blanks.resize(static_cast<size_t>(components.vocabulary.id_end()));
  for (int32_t id = 0; id < components.vocabulary.id_end(); ++id) {
    if (const std::string* token = components.vocabulary.token(id)) {
      blanks[static_cast<size_t>(id)] = blanks_of(*token);
    }
  }
}

TokenizerComponents read_tokenizer_json(
    std::string_view json,
    const std::string& name) {
  const nlohmann::json document = parse(json, name);
  const JsonNode root(document, name);
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
  TokenizerComponents components;
  read_model(root.at("model"), components);
  if (root.has("normalizer")) {
    read_normalizer(root.at("normalizer"), components);
  }
  read_pre_tokenizer(root.at("pre_tokenizer"), components);
  if (root.has("post_processor")) {
    read_post_processor(root.at("post_processor"), components);
  }
  if (root.has("decoder")) {
    components.decoder = read_decoder(root.at("decoder"));
  }
  if (root.has("truncation")) {
    components.truncation = read_truncation(root.at("truncation"));
  }
  if (root.has("padding")) {
    components.padding = read_padding(root.at("padding"));
  }
  if (root.has("added_tokens")) {
    add_tokens(components, read_added_tokens(root.at("added_tokens")), name);
  }
  count_blanks(components);
  return components;
}

} // namespace accelerate::text
