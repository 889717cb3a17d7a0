// SPDX-License-Identifier: Apache-2.0
// Our results compared with those of the Python package, on large inputs.
#include <gtest/gtest.h>

#include "support/long_run.h"
#include "text/oracle.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;

// A tokenizer for each name: the real MiniLM, and others trained here.
class TokenizerOracle : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_oracle()) {
      GTEST_SKIP() << "ACCELERATE_ORACLE_PYTHON is not set";
    }
    file_ = oracle_tokenizer(GetParam());
    tokenizer_.emplace(Tokenizer::from_file(file_));
  }

  void expect_equal(const std::vector<nlohmann::json>& jobs) const {
    auto answers = oracle_encode(file_, jobs);
    auto answer = answers.begin();
    int num_different = 0;
    for (const auto& job : jobs) {
      const auto inputs = job_inputs(job);
      const auto encodings = tokenizer_->encode_batch(inputs, job_options(job));
      ASSERT_LE(inputs.size(), static_cast<size_t>(answers.end() - answer));
      for (size_t i = 0; i < inputs.size(); ++i, ++answer) {
        // In the package, overflowing parts repeat parts of each other.
        for (Encoding& part : answer->encoding.overflowing) {
          part.overflowing.clear();
        }
        if (!is_equal(encodings[i], *answer) && ++num_different < 4) {
          ADD_FAILURE() << "input " << i << ": " << job["inputs"][i];
          report(encodings[i], *answer);
        }
      }
    }
    EXPECT_EQ(answer, answers.end());
  }

  bool is_equal(const Encoding& ours, const OracleAnswer& theirs) const {
    return ours == theirs.encoding &&
           tokenizer_->decode(ours.ids) == theirs.decoded &&
           tokenizer_->decode(ours.ids, false) == theirs.decoded_with_special;
  }

  void report(const Encoding& ours, const OracleAnswer& theirs) const {
    const auto pairs = [](const std::vector<TextSpan>& spans) {
      std::vector<std::pair<int, int>> result;
      for (const TextSpan& span : spans) {
        result.emplace_back(span.begin, span.end);
      }
      return result;
    };
    EXPECT_EQ(ours.ids, theirs.encoding.ids);
    EXPECT_EQ(pairs(ours.offsets), pairs(theirs.encoding.offsets));
    EXPECT_EQ(ours.word_ids, theirs.encoding.word_ids);
    EXPECT_EQ(ours.type_ids, theirs.encoding.type_ids);
    EXPECT_EQ(ours.attention_mask, theirs.encoding.attention_mask);
    EXPECT_EQ(ours.special_tokens_mask, theirs.encoding.special_tokens_mask);
    EXPECT_EQ(ours.overflowing.size(), theirs.encoding.overflowing.size());
    EXPECT_EQ(tokenizer_->decode(ours.ids), theirs.decoded);
    EXPECT_EQ(tokenizer_->decode(ours.ids, false), theirs.decoded_with_special);
  }

  fs::path file_;
  std::optional<Tokenizer> tokenizer_;
};

nlohmann::json whole(const std::vector<std::string>& texts) {
  return {{"inputs", texts}, {"truncation", nullptr}, {"padding", nullptr}};
}

// For texts, and for ranges of Unicode.
size_t step() {
  return is_long_run() ? 1 : 8;
}

TEST_P(TokenizerOracle, AgreesOnFortunes) {
  const auto& all = oracle_corpus("fortunes");
  std::vector<std::string> texts;
  for (size_t i = 0; i < all.size(); i += step()) {
    texts.push_back(all[i]);
  }
  expect_equal({whole(texts)});
}

TEST_P(TokenizerOracle, AgreesOnRandomUnicodeAndHardCases) {
  expect_equal({whole(oracle_corpus("random")), whole(oracle_corpus("hard"))});
}

TEST_P(TokenizerOracle, AgreesOnEveryCodePoint) {
  if (GetParam() == std::string("roberta")) {
    return; // the same two steps as gpt2
  }
  size_t num_different = 0;
  const auto answers = oracle_unicode(file_, step());
  ASSERT_GT(answers.size(), 2500 / step());
  for (const auto& answer : answers) {
    if (num_different < 5 &&
        (tokenizer_->normalize(answer.text) != answer.normalized ||
         tokenizer_->pre_tokenize(answer.text) != answer.words)) {
      ++num_different;
      EXPECT_EQ(tokenizer_->normalize(answer.text), answer.normalized);
      ADD_FAILURE() << "words differ in " << answer.text;
    }
  }
}

// Pairs with every kind of truncation and padding.
TEST_P(TokenizerOracle, AgreesOnPairsTruncationAndPadding) {
  // Two long texts have very many overflowing parts.
  std::vector<std::string> texts;
  for (const char* kind : {"hard", "fortunes"}) {
    for (const std::string& text : oracle_corpus(kind)) {
      if (text.size() < 90 && texts.size() < 60) {
        texts.push_back(text);
      }
    }
  }
  nlohmann::json pairs = nlohmann::json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    pairs.push_back({texts[i], texts[texts.size() - 1 - i]});
  }
  using Json = nlohmann::json;
  const std::vector<Json> truncations = {
      nullptr,
      {{"max_length", 12}},
      {{"max_length", 16}, {"stride", 3}},
      {{"max_length", 15}, {"stride", 2}, {"direction", "left"}},
      {{"max_length", 5}},
  };
  const std::vector<Json> paddings = {
      nullptr,
      Json::object(),
      {{"pad_to_multiple_of", 8}, {"pad_id", 3}, {"pad_type_id", 1}},
      {{"length", 40}, {"direction", "left"}},
  };
  std::vector<Json> jobs;
  for (size_t i = 0; i < truncations.size(); ++i) {
    for (const bool add_special : {true, false}) {
      Json job = {
          {"inputs", pairs},
          {"truncation", truncations[i]},
          {"padding", paddings[(i + add_special) % paddings.size()]},
          {"add_special_tokens", add_special}};
      jobs.push_back(job);
      job["inputs"] = texts;
      jobs.push_back(job);
    }
  }
  expect_equal(jobs);
}

TEST_P(TokenizerOracle, AgreesOnCuttingOneTextOfAPair) {
  const auto& texts = oracle_corpus("fortunes");
  nlohmann::json pairs = nlohmann::json::array();
  for (size_t i = 0; i < 100; ++i) {
    pairs.push_back({"short text", texts[i] + " and some more words"});
  }
  std::vector<nlohmann::json> jobs(2);
  jobs[0] = {
      {"inputs", pairs},
      {"truncation",
       {{"max_length", 12}, {"stride", 1}, {"strategy", "only_second"}}},
      {"padding", nullptr}};
  for (auto& pair : pairs) {
    std::swap(pair[0], pair[1]);
  }
  jobs[1] = {
      {"inputs", pairs},
      {"truncation", {{"max_length", 12}, {"strategy", "only_first"}}},
      {"padding", nullptr}};
  expect_equal(jobs);
}

// The file's own settings for truncation and padding.
TEST_P(TokenizerOracle, AgreesWithTheSettingsOfTheFile) {
  const auto& texts = oracle_corpus("fortunes");
  std::vector<nlohmann::json> jobs(1);
  jobs[0]["inputs"] = std::vector(texts.begin(), texts.begin() + 200);
  expect_equal(jobs);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TokenizerOracle,
    ::testing::Values("minilm", "wordpiece", "gpt2", "roberta", "llama3"),
    [](const auto& info) { return std::string(info.param); });

} // namespace
} // namespace accelerate::testing
