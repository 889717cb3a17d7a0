// SPDX-License-Identifier: Apache-2.0
// Small tokenizers with results of the Python package
// (tools/make_tokenizer_reference.py).
#include <gtest/gtest.h>

#include "text/oracle.h"

namespace accelerate::testing {
namespace {

using Json = nlohmann::json;

Encoding encoding_of(const Json& answer) {
  Encoding encoding;
  answer.at("ids").get_to(encoding.ids);
  answer.at("type_ids").get_to(encoding.type_ids);
  answer.at("attention_mask").get_to(encoding.attention_mask);
  answer.at("special_tokens_mask").get_to(encoding.special_tokens_mask);
  answer.at("word_ids").get_to(encoding.word_ids);
  const std::vector<int32_t> offsets = answer.at("offsets");
  for (size_t i = 0; i < offsets.size(); i += 2) {
    encoding.offsets.push_back({offsets[i], offsets[i + 1]});
  }
  for (const Json& part : answer.at("overflowing")) {
    encoding.overflowing.push_back(encoding_of(part));
  }
  return encoding;
}

class TokenizerReference : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string path_ = TEST_REFERENCE_DIR "/text/" + GetParam();
};

TEST_P(TokenizerReference, EqualsThePythonPackage) {
  const auto tokenizer = Tokenizer::from_file(path_ + ".json");
  const Json jobs = Json::parse(read_file(path_ + "_reference.json"));
  ASSERT_EQ(jobs.size(), 5u);
  for (const Json& job : jobs) {
    const auto encodings =
        tokenizer.encode_batch(job_inputs(job), job_options(job));
    const Json& answers = job.at("answers");
    ASSERT_EQ(encodings.size(), answers.size());
    for (size_t i = 0; i < encodings.size(); ++i) {
      SCOPED_TRACE(job["inputs"][i]);
      EXPECT_EQ(Json(encodings[i].ids), answers[i].at("ids"));
      EXPECT_TRUE(encodings[i] == encoding_of(answers[i]));
      EXPECT_EQ(
          Json(tokenizer.decode(encodings[i].ids)), answers[i].at("decoded"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TokenizerReference,
    ::testing::Values("wordpiece", "gpt2", "roberta", "llama3"),
    [](const auto& info) { return info.param; });

} // namespace
} // namespace accelerate::testing
