// SPDX-License-Identifier: Apache-2.0
#include "accelerate/datasets.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <random>

#include "accelerate/data/collate.h"
#include "accelerate/data/text_files.h"
#include "accelerate/data/token_file.h"
#include "accelerate/error.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using Indices = std::vector<int64_t>;
namespace fs = std::filesystem;

TEST(TensorDataset, CopiesRowsOfEveryKindOfColumn) {
  const auto words = torch::arange(12).reshape({4, 3});
  const auto scores = torch::arange(8.0).reshape({2, 4}).t(); // not contiguous
  const auto flags = torch::tensor({true, false, true, false});
  const TensorDataset data({words, scores, flags});
  EXPECT_EQ(data.size(), 4U);
  const Indices wanted = {3, 0, 3};
  const auto batch = data.get_batch(wanted);
  const auto rows = torch::tensor(wanted);
  EXPECT_TRUE(batch.at(0).equal(words.index_select(0, rows)));
  EXPECT_TRUE(batch.at(1).equal(scores.index_select(0, rows)));
  EXPECT_TRUE(batch.at(2).equal(flags.index_select(0, rows)));
  EXPECT_TRUE(data.get(2).at(0).equal(words[2]));
  EXPECT_EQ(data.get_batch({})[0].sizes(), (torch::IntArrayRef{0, 3}));
  // A batch has its own memory.
  batch[0].zero_();
  EXPECT_EQ(words[3][2].item<int64_t>(), 11);
}

TEST(TensorDataset, RejectsRowsOutOfRange) {
  const TensorDataset data({torch::zeros({2, 3})});
  for (const int64_t row : {-1, 2}) {
    const auto message = ThrowsMessage<UsageError>(
        HasSubstr("row is " + std::to_string(row) + ", expected 0 to 1"));
    EXPECT_THAT([&] { data.get_batch(Indices{0, row}); }, message);
    EXPECT_THAT([&] { data.get(row); }, message);
  }
  EXPECT_THAT(
      [] {
        TensorDataset({torch::zeros(2), torch::tensor(1)});
      },
      ThrowsMessage<UsageError>(HasSubstr("Column 1")));
}

TEST(VectorDataset, GivesElementsAndSubsetsOfThem) {
  VectorDataset<std::string> words({"a", "b", "c"});
  static_assert(Dataset<VectorDataset<std::string>>);
  EXPECT_EQ(words.size(), 3U);
  EXPECT_EQ(words.get(1), "b");
  SubsetDataset part(words, {2, 0});
  static_assert(Dataset<decltype(part)>);
  EXPECT_EQ(part.size(), 2U);
  EXPECT_EQ(part.get(0), "c");
  EXPECT_THROW(part.get(2), std::out_of_range);
}

struct Doubles : torch::data::Dataset<Doubles> {
  torch::data::Example<> get(size_t i) override {
    const auto number = static_cast<int64_t>(i);
    return {torch::tensor(number), torch::tensor(2 * number)};
  }
  std::optional<size_t> size() const override { return known_size; }
  std::optional<size_t> known_size = 5;
};

TEST(TorchDataset, GivesSamplesOrTheDatasetsOwnBatches) {
  TorchDataset data{Doubles()};
  static_assert(Dataset<decltype(data)> && !BatchDataset<decltype(data)>);
  EXPECT_EQ(data.size(), 5U);
  EXPECT_EQ(data.get(3).target.item<int64_t>(), 6);

  TorchDataset stacked(Doubles().map(torch::data::transforms::Stack<>()));
  static_assert(BatchDataset<decltype(stacked)> && !Dataset<decltype(stacked)>);
  const auto batch = stacked.get_batch(Indices{4, 1});
  EXPECT_TRUE(batch.target.equal(torch::tensor({8, 2})));

  Doubles endless;
  endless.known_size.reset();
  EXPECT_THAT(
      [&] { TorchDataset(endless).size(); },
      ThrowsMessage<UsageError>(HasSubstr("size of the dataset is unknown")));
}

TEST(GeneratorSource, StartsAgainWithEveryEpoch) {
  GeneratorSource source([](int64_t epoch) {
    return [epoch, i = 0]() mutable {
      return i < 2 ? std::optional(10 * epoch + i++) : std::nullopt;
    };
  });
  static_assert(IterableSource<decltype(source)>);
  static_assert(std::is_same_v<ElementOf<decltype(source)>, int64_t>);
  EXPECT_EQ(source.next(), std::nullopt);
  for (const int64_t epoch : {0, 1}) {
    source.reset(epoch);
    EXPECT_EQ(source.next(), 10 * epoch);
    EXPECT_EQ(source.next(), 10 * epoch + 1);
    EXPECT_EQ(source.next(), std::nullopt);
    EXPECT_EQ(source.next(), std::nullopt);
  }
  source.reset(2); // in the middle of nothing
  EXPECT_EQ(source.next(), 20);
  source.reset(3);
  EXPECT_EQ(source.next(), 30);
}

class TokenFile : public ::testing::TestWithParam<TokenWidth> {
 protected:
  fs::path write(const std::string& name, int64_t first, int64_t last) {
    const auto path = folder_.path() / name;
    const auto ids = torch::arange(first, last);
    write_token_file(
        path,
        {ids.data_ptr<int64_t>(), static_cast<size_t>(ids.numel())},
        GetParam());
    EXPECT_EQ(
        fs::file_size(path),
        static_cast<size_t>(last - first) * static_cast<size_t>(GetParam()));
    return path;
  }
  TokenFileOptions options(int64_t length, bool shift = false) const {
    return {
        .sequence_length = length, .width = GetParam(), .shift_labels = shift};
  }

  TempDir folder_;
};

TEST_P(TokenFile, GivesSamplesAcrossTheEndsOfFiles) {
  // 60000 to 60019, in files of 3, 0, 10 and 7 tokens.
  const std::vector<fs::path> files = {
      write("a", 60000, 60003),
      write("b", 0, 0),
      write("c", 60003, 60013),
      write("d", 60013, 60020)};
  const TokenFileDataset data(files, options(6));
  EXPECT_EQ(data.num_tokens(), 20);
  ASSERT_EQ(data.size(), 3U);
  const auto all = torch::arange(60000, 60020);
  for (const int64_t i : {2, 0, 1}) {
    const auto sample = data.get(i);
    EXPECT_TRUE(sample.input_ids.equal(all.slice(0, 6 * i, 6 * i + 6)));
    EXPECT_TRUE(sample.labels.equal(sample.input_ids));
    sample.labels.fill_(-100);
    EXPECT_EQ(sample.input_ids[0].item<int64_t>(), 60000 + 6 * i);
  }
  const auto batch = data.get_batch(Indices{2, 0});
  EXPECT_EQ(batch.input_ids.sizes(), (torch::IntArrayRef{2, 6}));
  EXPECT_EQ(batch.input_ids[1][5].item<int64_t>(), 60005);
  EXPECT_THAT(
      [&] { data.get(3); },
      ThrowsMessage<UsageError>(HasSubstr("sample is 3, expected 0 to 2")));
}

TEST_P(TokenFile, ShiftsLabelsIfRequested) {
  const auto file = write("a", 0, 12);
  const TokenFileDataset data({file}, options(6, true));
  ASSERT_EQ(data.size(), 1U); // token 12 is not there to be predicted
  EXPECT_TRUE(data.get(0).labels.equal(torch::arange(1, 7)));
  EXPECT_EQ(TokenFileDataset({write("b", 0, 13)}, options(6, true)).size(), 2U);
}

TEST_P(TokenFile, NamesTheFileThatIsMissingCutOffOrTooShort) {
  const auto missing = folder_.path() / "missing.bin";
  EXPECT_THAT(
      [&] { TokenFileDataset({missing}, options(4)); },
      ThrowsMessage<SystemError>(
          AllOf(HasSubstr(missing.string()), HasSubstr("No such file"))));
  const auto whole = write("whole.bin", 0, 8);
  const auto cut = folder_.write("cut.bin", read_file(whole) + "x");
  EXPECT_THAT(
      [&] {
        TokenFileDataset({whole, cut}, options(4));
      },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr(cut.string()),
          HasSubstr("bytes, which is not a multiple of"))));
  EXPECT_THAT(
      [&] { TokenFileDataset({whole}, options(9)); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr(whole.string()),
          HasSubstr("has 8 tokens, but one sample needs 9"))));
  EXPECT_THAT(
      [&] {
        TokenFileDataset({whole, whole}, options(17));
      },
      ThrowsMessage<DataError>(HasSubstr("and 1 more have 16 tokens")));
  EXPECT_THAT(
      [&] { TokenFileDataset({}, options(1)); },
      ThrowsMessage<UsageError>(HasSubstr("Got 0 files")));
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    TokenFile,
    ::testing::Values(TokenWidth::k16, TokenWidth::k32));

TEST(TokenFileWriter, RejectsIdsOutOfRange) {
  const TempDir folder;
  const auto file = folder.path() / "a";
  EXPECT_THAT(
      [&] {
        write_token_file(file, Indices{1, 65536});
      },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("id 1 is 65536"), HasSubstr("32-bit tokens"))));
  EXPECT_THROW(write_token_file(file, Indices{-1}), UsageError);
  EXPECT_FALSE(fs::exists(file));
}

class TextFile : public ::testing::Test {
 protected:
  TextDataset csv(const std::string& content, CsvOptions options = {}) const {
    return read_csv({folder_.write("a.csv", content)}, options);
  }
  TextDataset lines(const std::string& content) const {
    return read_json_lines({folder_.write("a.jsonl", content)});
  }
  static auto csv_says(const std::string& what) {
    return ThrowsMessage<DataError>(
        AllOf(HasSubstr("[read_csv] "), HasSubstr(what)));
  }

  TempDir folder_;
};

TEST_F(TextFile, ReadsQuotesLineEndsAndAByteOrderMark) {
  const auto data =
      csv("\xEF\xBB\xBFid,text,score\r\n"
          "1,\"a, b\",0.5\r\n"
          "\n"
          "2,\"said \"\"no\"\"\nand left\", 1e2 \n"
          "-3,,7");
  EXPECT_THAT(data.columns(), ElementsAre("id", "text", "score"));
  ASSERT_EQ(data.size(), 3U);
  EXPECT_THAT(
      data.get(0),
      ElementsAre(Pair("id", "1"), Pair("score", "0.5"), Pair("text", "a, b")));
  EXPECT_THAT(
      data.texts("text"), ElementsAre("a, b", "said \"no\"\nand left", ""));
  EXPECT_THAT(data.integers("id"), ElementsAre(1, 2, -3));
  EXPECT_THAT(data.numbers("score"), ElementsAre(0.5, 100, 7));
  EXPECT_THAT(
      collate(std::vector{data.get(2), data.get(0)}).at("id"),
      ElementsAre("-3", "1"));
}

TEST_F(TextFile, ReadsSeveralFilesOtherSeparatorsAndNoHeader) {
  const auto first = folder_.write("1.tsv", "a\tb\n1\t2\n");
  const auto second = folder_.write("2.tsv", "a\tb\n3\t4\n");
  const auto data = read_csv({first, second}, {.separator = '\t'});
  EXPECT_THAT(data.integers("b"), ElementsAre(2, 4));
  EXPECT_THAT(
      csv("1,2\n3,4\n", {.has_header = false}).integers("1"),
      ElementsAre(2, 4));
  EXPECT_EQ(csv("only,names\n").size(), 0U);
  EXPECT_EQ(csv("", {.has_header = false}).size(), 0U);
  EXPECT_THAT(
      [&] {
        read_csv(
            {first, folder_.write("3.tsv", "a\tc\n")}, {.separator = '\t'});
      },
      csv_says("3.tsv:1: The column names differ from those of the first file. "
               "Use the same columns in all files"));
}

TEST_F(TextFile, NamesTheLineOfAMalformedCsvRow) {
  EXPECT_THAT(
      [&] { csv("a,b\n1,\"x\ny\"\n1,2,3\n"); },
      csv_says("a.csv:4: This row has 3 fields, but the first row has 2"));
  EXPECT_THAT(
      [&] { csv("a,b\n1,2\n1,\"x\ny\n"); },
      csv_says("a.csv:3: A quoted field in this record is never closed. Add "
               "a quote at its end"));
  EXPECT_THAT(
      [&] { csv("a\n\"x\"y\n"); },
      csv_says("a.csv:2: 'y' follows a quoted field"));
  EXPECT_THAT(
      [&] { csv("a\nx\"y\n"); },
      csv_says("a.csv:2: A quote appears inside an unquoted field"));
  EXPECT_THAT([&] { csv("a,a\n"); }, csv_says("Two columns are named 'a'"));
  EXPECT_THAT([&] { csv("\n"); }, csv_says("The file is empty"));
  EXPECT_THAT(
      [&] { csv("a\n1\n\n1x\n").integers("a"); },
      csv_says("a.csv:4: Column 'a' is '1x', expected an integer"));
  EXPECT_THAT(
      [&] { csv("a\n1\n").texts("b"); },
      csv_says("a.csv:2: The row has no value for column 'b'"));
  EXPECT_THAT(
      [&] { read_csv({folder_.path() / "none.csv"}); },
      ThrowsMessage<SystemError>(HasSubstr("none.csv': No such file")));
  EXPECT_THAT(
      [&] { read_csv({}); },
      ThrowsMessage<UsageError>(HasSubstr("at least one file")));
  EXPECT_THAT(
      [&] { csv("a", {.separator = '"'}); },
      ThrowsMessage<UsageError>(HasSubstr("not a quote")));
  EXPECT_THAT(
      [&] { csv("a\n").get(0); },
      ThrowsMessage<UsageError>(HasSubstr("row is 0")));
}

TEST_F(TextFile, ReadsJsonLines) {
  const auto data = lines(
      "{\"text\": \"caf\\u00e9\\n\", \"label\": 1, \"score\": 1.50}\r\n"
      "  \n"
      "{\"label\": -7, \"text\": null, \"more\": [1, {\"a\\\"\": [\"x\", []]}, "
      "true, null, {}], \"score\": 2, \"o\": {\"b\": [1], \"c\": 2.0}}");
  ASSERT_EQ(data.size(), 2U);
  EXPECT_THAT(data.columns(), ElementsAre("text", "label", "score"));
  EXPECT_EQ(data.get(0).at("text"), "caf\xC3\xA9\n");
  EXPECT_EQ(data.get(0).at("score"), "1.50");
  EXPECT_THAT(
      data.get(1),
      ElementsAre(
          Pair("label", "-7"),
          Pair("more", "[1,{\"a\\\"\":[\"x\",[]]},true,null,{}]"),
          Pair("o", "{\"b\":[1],\"c\":2.0}"),
          Pair("score", "2")));
  EXPECT_THAT(data.integers("label"), ElementsAre(1, -7));
  EXPECT_THAT(data.numbers("score"), ElementsAre(1.5, 2));
  EXPECT_THAT(
      [&] { data.texts("text"); },
      ThrowsMessage<DataError>(HasSubstr("a.jsonl:3: The row has no value")));
  EXPECT_EQ(lines("").size(), 0U);
}

TEST_F(TextFile, NamesTheLineOfMalformedJson) {
  for (const std::string bad :
       {"{\"a\": }", "{\"a\": 1", "{} {}", "\"\xFF\"", "{\"a\": \"\xC3\"}"}) {
    EXPECT_THAT(
        [&] { lines("{}\n\n" + bad + "\n{}"); },
        ThrowsMessage<DataError>(AllOf(
            HasSubstr("[read_json_lines] "),
            HasSubstr("a.jsonl:3: "),
            HasSubstr("Write one JSON object per line"))));
  }
  for (const std::string bad : {"[1]", "3", "null", "\"text\""}) {
    EXPECT_THAT(
        [&] { lines("{}\n" + bad); },
        ThrowsMessage<DataError>(
            HasSubstr("a.jsonl:2: The line is not an object")));
  }
}

// All bytes of a table are read back, however unusual.
TEST_F(TextFile, ReturnsQuotedFieldsAsWritten) {
  std::mt19937 random(1);
  const std::string alphabet = "ab,\"\n\r \t\xC3\xA9";
  for (int round = 0; round < 60; ++round) {
    std::string text = "x,y\n";
    std::vector<std::string> expected;
    for (int i = 0; i < 6; ++i) {
      std::string field, quoted;
      for (auto n = random() % 6; n > 0; --n) {
        field += alphabet[random() % alphabet.size()];
        quoted += field.back() == '"' ? "\"\"" : field.substr(field.size() - 1);
      }
      expected.push_back(field);
      text += "\"" + quoted + "\"" + (i % 2 == 0 ? "," : "\r\n");
    }
    const auto data = csv(text);
    ASSERT_EQ(data.size(), 3U) << text;
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(
          data.get(static_cast<int64_t>(i / 2)).at(i % 2 == 0 ? "x" : "y"),
          expected[i]);
    }
  }
}

// Either all rows can be read or the file is rejected with a line.
TEST_F(TextFile, NeverFailsOtherwiseOnRandomBytes) {
  std::mt19937 random(2);
  const std::string alphabet =
      std::string("a1,\"\n\r{}[]:\\ue.-\xEF\xBB\xBF\xFFtn") + '\0';
  int num_read = 0;
  int num_refused = 0;
  const auto try_both = [&](const std::string& text) {
    for (const bool is_csv : {true, false}) {
      try {
        const auto data =
            is_csv ? csv(text, {.has_header = random() % 2 == 0}) : lines(text);
        for (size_t i = 0; i < data.size(); ++i) {
          data.get(static_cast<int64_t>(i));
        }
        ++num_read;
      } catch (const DataError& error) {
        ++num_refused;
        EXPECT_THAT(error.what(), HasSubstr(is_csv ? ".csv:" : ".jsonl:"));
      }
    }
  };
  for (int round = 0; round < 250; ++round) {
    std::string text;
    for (auto n = random() % 80; n > 0; --n) {
      text += alphabet[random() % alphabet.size()];
    }
    try_both(text);
    text.insert(0, "{\"a\":[").append("]}\n{}");
    try_both(text);
  }
  EXPECT_GT(num_read, 20);
  EXPECT_GT(num_refused, 50);
  // Deep nesting must not overflow the stack.
  const std::string deep(1 << 20, '[');
  try_both("{\"a\":" + deep + std::string(1 << 20, ']') + "}");
  try_both("{\"a\":" + deep);
}

} // namespace
} // namespace accelerate::testing
