// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "core/base/str.h"
#include "core/base/utf8.h"
#include "text/json_node.h"
#include "text/tokenizer_components.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace accelerate::text {
namespace {

std::string_view without_trailing_spaces(std::string_view line) {
  size_t end = line.size();
  while (end > 0) {
    size_t before = end;
    if (!classes(previous_code_point(line, before))
             .has(CharClass::kWhitespace)) {
      break;
    }
    end = before;
  }
  return line.substr(0, end);
}

void read_lines(
    std::string_view lines,
    Vocabulary& vocabulary,
    const std::string& name) {
  int32_t id = 0;
  for (size_t begin = 0; begin < lines.size(); ++id) {
    const size_t found = lines.find('\n', begin);
    const size_t end = found == lines.npos ? lines.size() : found;
    if (id > kMaxTokenId) {
      throw ConfigError(str_cat(
          "[Tokenizer] ", name, " has more than ", kMaxTokenId, " lines"));
    }
    vocabulary.add(
        without_trailing_spaces(lines.substr(begin, end - begin)), id);
    begin = end + 1;
  }
}

int32_t needed_id(
    const Vocabulary& vocabulary,
    const char* token,
    const std::string& name) {
  const int32_t id = vocabulary.id(token);
  if (id == StringMap::kNone) {
    throw ConfigError(str_cat(
        "[Tokenizer] ",
        name,
        " has no line ",
        token,
        ", so it is not a BERT vocabulary. Pass a tokenizer.json for other "
        "models"));
  }
  return id;
}

PostProcessor bert_post_processor(int32_t cls, int32_t sep) {
  using Kind = TemplateSlot::Kind;
  PostProcessor processor = make_plain_post_processor();
  const TemplateSlot first = processor.pair[0];
  const TemplateSlot second = processor.pair[1];
  const TemplateSlot start{Kind::kSpecial, {cls}, 0, 0};
  const TemplateSlot middle{Kind::kSpecial, {sep}, 0, 0};
  const TemplateSlot end{Kind::kSpecial, {sep}, 1, 1};
  processor.single = {start, first, middle};
  processor.pair = {start, first, middle, second, end};
  return processor;
}

} // namespace

BertSettings read_bert_settings(
    std::string_view json,
    const std::string& name) {
  BertSettings settings;
  const auto document = nlohmann::json::parse(json, nullptr, false);
  if (document.is_discarded()) {
    throw ConfigError(str_cat("[Tokenizer] ", name, " is not valid JSON"));
  }
  const JsonNode root(document, name);
  settings.lowercase = root.boolean_or("do_lower_case", true);
  settings.space_chinese = root.boolean_or("tokenize_chinese_chars", true);
  if (root.has("strip_accents")) {
    settings.strip_accents = root.at("strip_accents").boolean();
  }
  return settings;
}

TokenizerComponents read_vocab_txt(
    std::string_view lines,
    const BertSettings& settings,
    const std::string& name) {
  if (const auto at = find_invalid_utf8(lines)) {
    throw ConfigError(
        str_cat("[Tokenizer] ", name, " is not valid UTF-8 at byte ", *at));
  }
  TokenizerComponents components;
  read_lines(lines, components.vocabulary, name);
  WordPieceModel model;
  model.settings.unknown_id = needed_id(components.vocabulary, "[UNK]", name);
  components.model = std::move(model);
  components.normalizer = Normalizer(bert_steps(settings, true));
  components.post_processor = bert_post_processor(
      needed_id(components.vocabulary, "[CLS]", name),
      needed_id(components.vocabulary, "[SEP]", name));
  components.decoder.kind = Decoder::Kind::kWordPiece;
  std::vector<AddedToken> special;
  for (const char* token : {"[UNK]", "[SEP]", "[CLS]", "[PAD]", "[MASK]"}) {
    if (components.vocabulary.id(token) != StringMap::kNone) {
      special.push_back(
          {.content = token, .normalized = false, .special = true});
    }
  }
  add_tokens(components, std::move(special), name);
  return components;
}

} // namespace accelerate::text
