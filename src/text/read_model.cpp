// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include "text/readers.h"

namespace accelerate::text {
namespace {

// Reads entries directly, and creates nodes only for messages, because there
// are hundreds of thousands of entries.
void read_vocabulary(const JsonNode& node, Vocabulary& vocabulary) {
  if (!node.value().is_object()) {
    node.refuse("is not an object that maps tokens to ids");
  }
  for (const auto& [token, value] : node.value().items()) {
    vocabulary.add(
        token,
        JsonNode::is_number(value, kMaxTokenId)
            ? value.get<int32_t>()
            : node.at(token).number(kMaxTokenId));
  }
}

int32_t id_of(const JsonNode& node, const Vocabulary& vocabulary) {
  const int32_t id = vocabulary.id(node.text());
  if (id == StringMap::kNone) {
    node.refuse(str_cat("is '", node.text(), "', which is not in model.vocab"));
  }
  return id;
}

WordPieceModel read_word_piece(const JsonNode& node, Vocabulary& vocabulary) {
  node.allow_keys(
      {"type",
       "unk_token",
       "continuing_subword_prefix",
       "max_input_chars_per_word",
       "vocab"});
  read_vocabulary(node.at("vocab"), vocabulary);
  WordPieceModel model;
  model.settings.unknown_id = id_of(node.at("unk_token"), vocabulary);
  model.settings.prefix = node.at("continuing_subword_prefix").text();
  model.settings.max_chars =
      static_cast<size_t>(node.at("max_input_chars_per_word").number(1 << 30));
  return model;
}

using TokenPair = std::pair<std::string, std::string>;

// A merge is "a b" in older files, ["a", "b"] in newer ones.
std::optional<TokenPair> read_merge(const nlohmann::json& value) {
  if (value.is_array()) {
    const bool is_pair =
        value.size() == 2 && value[0].is_string() && value[1].is_string();
    return is_pair ? std::optional(TokenPair(value[0], value[1]))
                   : std::nullopt;
  }
  if (!value.is_string()) {
    return std::nullopt;
  }
  const auto& text = value.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != text.npos) {
    return std::nullopt;
  }
  return TokenPair(text.substr(0, space), text.substr(space + 1));
}

bool is_version_line(const nlohmann::json& value) {
  return value.is_string() &&
         value.get_ref<const std::string&>().starts_with("#version");
}

MergeMap read_merges(const JsonNode& node, const Vocabulary& vocabulary) {
  const size_t count = node.array_size();
  MergeMap merges(count);
  uint32_t rank = 0;
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& value = node.value()[i];
    if (is_version_line(value)) {
      continue;
    }
    const auto pair = read_merge(value);
    if (!pair) {
      node.at(i).refuse("is not a merge of two tokens");
    }
    const auto id = [&](const std::string& token) {
      const int32_t found = vocabulary.id(token);
      if (found == StringMap::kNone) {
        node.at(i).refuse(str_cat(
            "needs the token '", token, "', which is not in model.vocab"));
      }
      return found;
    };
    const auto& [left, right] = *pair;
    const int32_t left_id = id(left);
    const int32_t right_id = id(right);
    merges.set(left_id, right_id, {rank++, id(left + right)});
  }
  return merges;
}

ByteBpeModel read_bpe(const JsonNode& node, Vocabulary& vocabulary) {
  node.allow_keys(
      {"type",
       "dropout",
       "unk_token",
       "continuing_subword_prefix",
       "end_of_word_suffix",
       "fuse_unk",
       "byte_fallback",
       "ignore_merges",
       "vocab",
       "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (node.has(key) && !node.at(key).text().empty()) {
      node.at(key).refuse("is not empty, which is not supported for BPE");
    }
  }
  if (node.has("dropout") && node.at("dropout").value() != 0.0) {
    node.at("dropout").refuse("is not 0, but only 0 is supported");
  }
  if (node.boolean_or("byte_fallback", false)) {
    node.at("byte_fallback").refuse("is true, which is not supported");
  }
  read_vocabulary(node.at("vocab"), vocabulary);
  ByteBpe::Settings settings;
  if (node.has("unk_token")) {
    settings.unknown_id = id_of(node.at("unk_token"), vocabulary);
  }
  settings.fuse_unknown = node.boolean_or("fuse_unk", false);
  settings.ignore_merges = node.boolean_or("ignore_merges", false);
  return {settings, read_merges(node.at("merges"), vocabulary)};
}

} // namespace

void read_model(const JsonNode& node, TokenizerComponents& components) {
  // Files of the first versions omit the type.
  const bool is_bpe =
      node.has("type") ? node.type() == "BPE" : node.has("merges");
  if (is_bpe) {
    components.model = read_bpe(node, components.vocabulary);
  } else if (!node.has("type") || node.type() == "WordPiece") {
    components.model = read_word_piece(node, components.vocabulary);
  } else {
    node.refuse_type("WordPiece and BPE");
  }
}

} // namespace accelerate::text
