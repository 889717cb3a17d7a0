// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "accelerate/text.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

Tokenizer small(const std::string& kind) {
  return Tokenizer::from_file(TEST_REFERENCE_DIR "/text/" + kind + ".json");
}

// Lines 0 to 9.
constexpr const char* kBertLines =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nwor\n##ld\n!\nHello \n";

template <class Exception = Error, class Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const Exception& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Tokenizer, ReadsAVocabularyAsAnUncasedBert) {
  const TempDir folder;
  folder.write("vocab.txt", kBertLines);
  const auto tokenizer = Tokenizer::from_folder(folder.path());
  const Encoding encoding = tokenizer.encode("Hello wórld! [MASK]");
  EXPECT_EQ(encoding.ids, (Ids{2, 5, 6, 7, 8, 4, 3}));
  EXPECT_EQ(encoding.word_ids, (Ids{-1, 0, 1, 1, 2, 3, -1}));
  EXPECT_EQ(encoding.offsets[2], (TextSpan{6, 9}));
  EXPECT_EQ(tokenizer.decode(encoding.ids), "hello world!");
  EXPECT_EQ(tokenizer.vocab_size(), 10);
}

TEST(Tokenizer, UsesTheConfigurationOfAVocabulary) {
  const TempDir folder;
  folder.write("vocab.txt", kBertLines);
  folder.write("tokenizer_config.json", R"({"do_lower_case": false})");
  const auto tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.encode("Hello hello").ids, (Ids{2, 9, 5, 3}));
}

TEST(Tokenizer, PutsPairsIntoTheTemplate) {
  const TempDir folder;
  const auto tokenizer =
      Tokenizer::from_file(folder.write("vocab.txt", kBertLines));
  const Encoding encoding = tokenizer.encode({"hello", "world"});
  EXPECT_EQ(encoding.ids, (Ids{2, 5, 3, 6, 7, 3}));
  EXPECT_EQ(encoding.type_ids, (Ids{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(encoding.special_tokens_mask, (Ids{1, 0, 1, 0, 0, 1}));
}

TEST(Tokenizer, SaysWhereABertVocabularyIsIncomplete) {
  const TempDir folder;
  const auto file = folder.write("vocab.txt", "[UNK]\n[CLS]\n");
  EXPECT_THAT(
      message_of<ConfigError>([&] { Tokenizer::from_file(file); }),
      HasSubstr("has no line [SEP]"));
  folder.write("vocab.txt", "[UNK]\n\xff\n");
  EXPECT_THAT(
      message_of<ConfigError>([&] { Tokenizer::from_file(file); }),
      HasSubstr("is not valid UTF-8 at byte 6"));
}

TEST(Tokenizer, SaysWhichFileIsMissing) {
  const TempDir folder;
  EXPECT_THAT(
      message_of<ConfigError>([&] { Tokenizer::from_folder(folder.path()); }),
      HasSubstr("has neither tokenizer.json nor vocab.txt"));
  EXPECT_THAT(
      message_of<SystemError>(
          [&] { Tokenizer::from_file(folder.path() / "no.json"); }),
      HasSubstr("No such file"));
}

TEST(Tokenizer, NamesTheByteThatIsNotUtf8) {
  const auto tokenizer = small("gpt2");
  const auto position = [&](const std::string& text) -> size_t {
    try {
      tokenizer.encode(text);
    } catch (const InvalidUtf8Error& e) {
      EXPECT_THAT(
          e.what(), HasSubstr("position " + std::to_string(e.position())));
      return e.position();
    }
    ADD_FAILURE() << "nothing was thrown";
    return 0;
  };
  EXPECT_EQ(position("ab\xff"), 2u);
  EXPECT_EQ(position("\xc3"), 0u);
  EXPECT_EQ(position("é\xe2\x82"), 2u);         // cut short
  EXPECT_EQ(position("12345678\xc0\x80"), 8u);  // overlong
  EXPECT_EQ(position("a\xed\xa0\x80"), 1u);     // a surrogate
  EXPECT_EQ(position("a\xf4\x90\x80\x80"), 1u); // above U+10FFFF
  EXPECT_EQ(position("a\x80"), 1u);
}

TEST(Tokenizer, NamesTheInputOfABatchThatIsRefused) {
  const auto tokenizer = small("wordpiece");
  std::vector<std::string> texts(200, "some text");
  texts[150] = "\xff";
  texts[70] = "abc\xff";
  for (const int threads : {1, 2, 4}) {
    const std::string message = message_of<InvalidUtf8Error>(
        [&] { tokenizer.encode_batch(texts, {.num_threads = threads}); });
    EXPECT_THAT(message, HasSubstr("input 70: "));
    EXPECT_THAT(message, HasSubstr("position 3"));
  }
}

TEST(Tokenizer, RejectsImpossibleOptions) {
  const auto tokenizer = small("wordpiece");
  const auto message = [&](Truncation truncation) {
    return message_of<UsageError>([&] {
      tokenizer.encode("one two three four", {.truncation = truncation});
    });
  };
  EXPECT_THAT(
      message({.max_length = 1}),
      HasSubstr("at least 2, the number of special tokens"));
  EXPECT_THAT(
      message({.max_length = 5, .stride = 3}), HasSubstr("stride is 3"));
  EXPECT_THAT(
      message({.strategy = Truncation::Strategy::kOnlySecond, .max_length = 3}),
      HasSubstr("only one text"));
  EXPECT_THAT(
      message_of<UsageError>([&] {
        tokenizer.encode(
            {"a", "b c d e f g"},
            {.truncation = Truncation{
                 .strategy = Truncation::Strategy::kOnlyFirst,
                 .max_length = 5}});
      }),
      HasSubstr("first text has 1 tokens"));
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { tokenizer.encode("a", {.padding = Padding{.length = -1}}); }),
      HasSubstr("Both must be at least 0"));
}

TEST(Tokenizer, IsTheSameFromManyThreads) {
  const auto tokenizer = small("llama3");
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) {
    texts.push_back(
        "word" + std::to_string(i) + " über " + std::string(i % 7, 'x'));
  }
  const auto expected = tokenizer.encode_batch(texts, {.num_threads = 1});
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      EXPECT_TRUE(
          tokenizer.encode_batch(texts, {.num_threads = 3}) == expected);
      EXPECT_TRUE(tokenizer.encode(texts[7]) == expected[7]);
    });
  }
}

TEST(Tokenizer, EncodesEmptyText) {
  const auto tokenizer = small("gpt2");
  EXPECT_EQ(tokenizer.encode("").size(), 0u);
  EXPECT_TRUE(tokenizer.encode_batch(std::vector<std::string>{}).empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, SkipsUnknownIds) {
  const auto tokenizer = small("gpt2");
  const int32_t end = tokenizer.token_to_id("<|endoftext|>").value();
  EXPECT_EQ(tokenizer.decode(Ids{end, 1 << 20, -5}, false), "<|endoftext|>");
  EXPECT_EQ(tokenizer.decode(Ids{end}), "");
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
}

TEST(Tokenizer, DecodesPartsOfCharactersAsReplacements) {
  const auto tokenizer = small("gpt2");
  // Bytes E2 82 AC are the euro sign; each letter of the alphabet is a byte.
  const auto id = [&](const char* token) {
    return tokenizer.token_to_id(token).value();
  };
  const Ids euro = {id("â"), id("Ĥ"), id("¬")};
  EXPECT_EQ(tokenizer.decode(euro), "€");
  EXPECT_EQ(tokenizer.decode(Ids{euro[0], euro[1]}), "\uFFFD");
  EXPECT_EQ(tokenizer.decode(Ids{euro[0], id("a")}), "\uFFFDa");
  EXPECT_EQ(tokenizer.decode(Ids{euro[2], euro[2]}), "\uFFFD\uFFFD");
}

} // namespace
} // namespace accelerate::testing
