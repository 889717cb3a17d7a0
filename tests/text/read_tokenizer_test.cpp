// SPDX-License-Identifier: Apache-2.0
// Invalid contents of a tokenizer.json, and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "accelerate/text.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json load(const std::string& kind) {
  return Json::parse(read_file(TEST_REFERENCE_DIR "/text/" + kind + ".json"));
}

std::string refusal(const Json& json) {
  try {
    Tokenizer::from_json(json.dump());
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "was read";
}

struct Change {
  const char* kind;
  const char* place;
  Json value;
  const char* message;
};

class UnreadPart : public ::testing::TestWithParam<Change> {};

TEST_P(UnreadPart, IsAnErrorThatNamesIt) {
  Json json = load(GetParam().kind);
  ASSERT_EQ(refusal(json), "was read");
  json[Json::json_pointer(GetParam().place)] = GetParam().value;
  EXPECT_THAT(refusal(json), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    UnreadPart,
    ::testing::Values(
        Change{"gpt2", "/model/type", "Unigram", "model is of type 'Unigram'"},
        Change{"gpt2", "/model/dropout", 0.1, "model.dropout is not 0"},
        Change{"gpt2", "/model/byte_fallback", true, "model.byte_fallback"},
        Change{
            "gpt2",
            "/model/end_of_word_suffix",
            "</w>",
            "model.end_of_word_suffix is not empty"},
        Change{"gpt2", "/model/unk_token", "<u>", "model.unk_token is '<u>'"},
        Change{"gpt2", "/model/vocab/a", -1, "model.vocab.a is -1"},
        Change{"gpt2", "/model/vocab/a", 1 << 30, "an integer"},
        Change{"gpt2", "/model/merges/3", "a", "model.merges[3]"},
        Change{
            "gpt2",
            "/model/merges/0",
            Json::array({"x", "nothing"}),
            "model.merges[0] needs the token 'nothing'"},
        Change{
            "gpt2",
            "/normalizer",
            {{"type", "NFKC"}},
            "normalizer is of type 'NFKC', which is not supported"},
        Change{
            "wordpiece",
            "/normalizer",
            {{"type", "Sequence"}, {"normalizers", {{{"type", "Nmt"}}}}},
            "normalizer.normalizers[0] is of type 'Nmt'"},
        Change{
            "gpt2",
            "/pre_tokenizer",
            {{"type", "Metaspace"}},
            "pre_tokenizer is of type 'Metaspace'"},
        Change{"gpt2", "/pre_tokenizer", nullptr, "pre_tokenizer is null"},
        Change{
            "gpt2",
            "/pre_tokenizer",
            {{"type", "BertPreTokenizer"}},
            "Supported with BPE: ByteLevel"},
        Change{
            "llama3",
            "/pre_tokenizer/pretokenizers/0/pattern/Regex",
            "\\w+",
            "pre_tokenizer.pretokenizers[0].pattern.Regex is '\\w+'"},
        Change{
            "llama3",
            "/pre_tokenizer/pretokenizers/0/type",
            "Digits",
            "pre_tokenizer.pretokenizers[0] is of type 'Digits'"},
        Change{
            "llama3",
            "/pre_tokenizer/pretokenizers/0/behavior",
            "Removed",
            "behavior is not 'Isolated'"},
        Change{
            "llama3",
            "/post_processor/processors/0",
            {{"type", "Other"}},
            "post_processor.processors[0] is of type 'Other'"},
        Change{
            "llama3",
            "/post_processor/processors/1/single/1/Sequence/id",
            "C",
            "single[1].Sequence.id is 'C'"},
        Change{
            "gpt2",
            "/decoder",
            {{"type", "Metaspace"}},
            "decoder is of type 'Metaspace'"},
        Change{"gpt2", "/added_tokens/0/content", 3, "added_tokens[0].content"},
        Change{"gpt2", "/version", "2.0", "version is '2.0'"},
        Change{"gpt2", "/extra", 1, "the key 'extra'"},
        Change{"gpt2", "/decoder/new_key", 1, "decoder has the key 'new_key'"},
        Change{"gpt2", "/padding", {{"strategy", 1}}, "padding.strategy is 1"},
        Change{
            "gpt2",
            "/truncation",
            {{"max_length", 1.5}},
            "truncation.max_length is 1.5"}));

TEST(ReadTokenizer, RefusesWhatIsNotJson) {
  const auto message = [](std::string_view json) -> std::string {
    try {
      Tokenizer::from_json(json);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "was read";
  };
  EXPECT_THAT(message("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("\"\xff\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("the file is an array"));
  EXPECT_THAT(message("{}"), HasSubstr("has no 'model'"));
}

TEST(ReadTokenizer, RefusesPartsThatAreNestedWithoutEnd) {
  const size_t depth = 200000;
  const std::string deep =
      std::string(depth, '[') + "1" + std::string(depth, ']');
  Json json = load("gpt2");
  json["version"] = "DEEP";
  std::string text = json.dump();
  text.replace(text.find("\"DEEP\""), 6, deep);
  EXPECT_THROW(Tokenizer::from_json(text), ConfigError);
  std::string normalizer = R"({"type":"Lowercase"})";
  for (int i = 0; i < 3; ++i) {
    normalizer = R"({"type":"Sequence","normalizers":[)" + normalizer + "]}";
  }
  json = load("gpt2");
  json["normalizer"] = Json::parse(normalizer);
  EXPECT_THAT(refusal(json), HasSubstr("a Sequence in a Sequence"));
}

TEST(ReadTokenizer, ReadsMergesOfOlderFiles) {
  Json json = load("gpt2");
  const std::string expected = json.dump();
  for (Json& merge : json["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  json["model"]["merges"].insert(
      json["model"]["merges"].begin(), "#version: 0.2");
  const char* text = "The quick brown fox";
  EXPECT_EQ(
      Tokenizer::from_json(json.dump()).encode(text).ids,
      Tokenizer::from_json(expected).encode(text).ids);
}

} // namespace
} // namespace accelerate::testing
