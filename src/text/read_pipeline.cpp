// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "text/readers.h"

namespace accelerate::text {
namespace {

constexpr const char* kNormalizers =
    "BertNormalizer, Lowercase, NFD, and Sequence of them";
constexpr const char* kPreTokenizers =
    "BertPreTokenizer, ByteLevel, and Sequence of one Split and ByteLevel";

constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3Start =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}";
constexpr std::string_view kLlama3End =
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

void add_normalizer_steps(
    const JsonNode& node,
    bool is_inner,
    std::vector<NormalizerStep>& steps) {
  const std::string& type = node.type();
  if (type == "BertNormalizer") {
    node.allow_keys(
        {"type",
         "clean_text",
         "handle_chinese_chars",
         "strip_accents",
         "lowercase"});
    BertSettings settings;
    settings.lowercase = node.at("lowercase").boolean();
    settings.space_chinese = node.at("handle_chinese_chars").boolean();
    if (node.has("strip_accents")) {
      settings.strip_accents = node.at("strip_accents").boolean();
    }
    const auto bert = bert_steps(settings, node.at("clean_text").boolean());
    steps.insert(steps.end(), bert.begin(), bert.end());
  } else if (type == "Sequence") {
    node.allow_keys({"type", "normalizers"});
    if (is_inner) {
      node.refuse("is a Sequence in a Sequence, which is not supported");
    }
    const JsonNode inner = node.at("normalizers");
    for (size_t i = 0; i < inner.array_size(); ++i) {
      add_normalizer_steps(inner.at(i), true, steps);
    }
  } else if (type == "Lowercase") {
    node.allow_keys({"type"});
    steps.push_back(NormalizerStep::kLowercase);
  } else if (type == "NFD") {
    node.allow_keys({"type"});
    steps.push_back(NormalizerStep::kDecompose);
  } else {
    node.refuse_type(kNormalizers);
  }
}

void read_byte_level(const JsonNode& node, PreTokenizer& result) {
  node.allow_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  result.add_prefix_space = node.at("add_prefix_space").boolean();
  if (node.boolean_or("use_regex", true)) {
    result.pattern = PreTokenizer::Pattern::kGpt2;
  }
}

void read_split(const JsonNode& node, PreTokenizer& result) {
  node.allow_keys({"type", "pattern", "behavior", "invert"});
  const JsonNode pattern = node.at("pattern");
  pattern.allow_keys({"Regex"});
  const std::string_view regex = pattern.at("Regex").text();
  if (node.at("behavior").text() != "Isolated") {
    node.at("behavior")
        .refuse("is not 'Isolated', but only 'Isolated' is supported");
  }
  if (node.at("invert").boolean()) {
    node.at("invert").refuse("is true, which is not supported");
  }
  result.pattern = PreTokenizer::Pattern::kLlama3;
  if (regex == kGpt2Pattern) {
    result.pattern = PreTokenizer::Pattern::kGpt2;
  } else if (regex == str_cat(kLlama3Start, "{1,3}", kLlama3End)) {
    result.max_digits = 3;
  } else if (regex == str_cat(kLlama3Start, kLlama3End)) {
    result.max_digits = 1;
  } else {
    pattern.at("Regex").refuse(str_cat(
        "is '",
        regex,
        "', which is not supported. Supported: the patterns of GPT-2, Llama 3 "
        "and Qwen 2"));
  }
}

PreTokenizer read_split_and_byte_level(const JsonNode& node) {
  node.allow_keys({"type", "pretokenizers"});
  const JsonNode inner = node.at("pretokenizers");
  PreTokenizer result;
  if (inner.array_size() == 1 && inner.at(0).type() == "ByteLevel") {
    result.pattern = PreTokenizer::Pattern::kNone;
    read_byte_level(inner.at(0), result);
    return result;
  }
  if (inner.array_size() != 2 || inner.at(0).type() != "Split" ||
      inner.at(1).type() != "ByteLevel") {
    for (size_t i = 0; i < inner.array_size(); ++i) {
      if (inner.at(i).type() != "Split" && inner.at(i).type() != "ByteLevel") {
        inner.at(i).refuse_type(kPreTokenizers);
      }
    }
    inner.refuse("is not supported. Supported: one Split and one ByteLevel");
  }
  if (inner.at(1).boolean_or("use_regex", true)) {
    inner.at(1).refuse(
        "splits text after a Split ('use_regex'), which is not supported");
  }
  read_byte_level(inner.at(1), result);
  read_split(inner.at(0), result);
  result.is_prefix_per_word = true;
  return result;
}

} // namespace

std::vector<NormalizerStep> bert_steps(
    const BertSettings& settings,
    bool clean) {
  std::vector<NormalizerStep> steps;
  if (clean) {
    steps.push_back(NormalizerStep::kClean);
  }
  if (settings.space_chinese) {
    steps.push_back(NormalizerStep::kSpaceChinese);
  }
  if (settings.strip_accents.value_or(settings.lowercase)) {
    steps.push_back(NormalizerStep::kDecompose);
    steps.push_back(NormalizerStep::kStripNonspacing);
  }
  if (settings.lowercase) {
    steps.push_back(NormalizerStep::kLowercase);
  }
  return steps;
}

void read_normalizer(const JsonNode& node, TokenizerComponents& components) {
  std::vector<NormalizerStep> steps;
  add_normalizer_steps(node, false, steps);
  if (!steps.empty()) {
    components.normalizer = Normalizer(std::move(steps));
  }
}

void read_pre_tokenizer(const JsonNode& node, TokenizerComponents& components) {
  const bool is_bpe = std::holds_alternative<ByteBpeModel>(components.model);
  if (node.is_null()) {
    node.refuse(
        "is null, but tokenizers that do not split text into words are not "
        "supported");
  }
  const std::string& type = node.type();
  const bool is_bert = type == "BertPreTokenizer";
  if (is_bert) {
    node.allow_keys({"type"});
  } else if (type == "ByteLevel") {
    components.pre_tokenizer.pattern = PreTokenizer::Pattern::kNone;
    read_byte_level(node, components.pre_tokenizer);
  } else if (type == "Sequence") {
    components.pre_tokenizer = read_split_and_byte_level(node);
  } else {
    node.refuse_type(kPreTokenizers);
  }
  if (is_bert == is_bpe) {
    node.refuse(str_cat(
        "is of type '",
        type,
        "', which is not supported with this model. Supported with ",
        is_bpe ? "BPE: ByteLevel" : "WordPiece: BertPreTokenizer"));
  }
}

} // namespace accelerate::text
