// SPDX-License-Identifier: Apache-2.0
// Files of the Python library, and everything that must be rejected.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "safetensors/cause.h"
#include "safetensors/reference.h"

namespace accelerate::testing {
namespace {

using namespace safetensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Verdicts {
  std::string flips;
  std::string prefixes;
};

Verdicts verdicts() {
  std::ifstream file(reference_file("verdicts.txt"));
  Verdicts result;
  std::getline(file, result.flips);
  std::getline(file, result.prefixes);
  return result;
}

TEST(SafetensorsReader, ReadsWhatPythonWrote) {
  const File file(reference_file("small.safetensors"));
  ASSERT_THAT(file.tensors(), SizeIs(2));
  EXPECT_THAT(file.metadata(), IsEmpty());
  const TensorView& bias = file.tensor("bias");
  EXPECT_EQ(bias.dtype, Dtype::kF32);
  EXPECT_THAT(bias.shape, ElementsAre(2));
  EXPECT_EQ(
      text_of(bias.data), std::string("\x00\x07\x0e\x15\x1c\x23\x2a\x31", 8));
  const TensorView& weight = file.tensor("weight");
  EXPECT_EQ(weight.dtype, Dtype::kBF16);
  EXPECT_THAT(weight.shape, ElementsAre(2, 3));
  EXPECT_EQ(weight.num_elements(), 6);
  EXPECT_EQ(
      text_of(weight.data), "\x1f\x26\x2d\x34\x3b\x42\x49\x50\x57\x5e\x65\x6c");
}

TEST(SafetensorsReader, GivesViewsThatOutliveTheFileThatAnyCopyHolds) {
  auto file = std::make_unique<File>(reference_file("small.safetensors"));
  const File copy = *file;
  const auto data = file->tensor("bias").data;
  file.reset();
  EXPECT_EQ(data.data(), copy.tensor("bias").data.data());
  EXPECT_EQ(std::to_integer<int>(data[7]), 0x31);
}

TEST(SafetensorsReader, ReadsMetadata) {
  EXPECT_EQ(
      File(reference_file("metadata.safetensors")).metadata(),
      (Metadata{{"format", "pt"}}));
  EXPECT_EQ(
      File(reference_file("names.safetensors")).metadata(),
      (Metadata{{"Schlüssel", "a \"value\"\n"}}));
}

TEST(SafetensorsReader, NamesTheFileAndSomeTensorsIfATensorIsMissing) {
  const File file(reference_file("small.safetensors"));
  EXPECT_FALSE(file.contains("Weight"));
  try {
    file.tensor("Weight");
    FAIL();
  } catch (const TensorNotFoundError& error) {
    EXPECT_THAT(error.what(), HasSubstr("small.safetensors"));
    EXPECT_THAT(error.what(), HasSubstr("no tensor 'Weight' (it has 2 others"));
    EXPECT_THAT(error.what(), HasSubstr("'bias', 'weight'"));
  }
}

TEST(SafetensorsReader, RejectsEveryPrefixWithRustsCause) {
  const std::string file = read_file(reference_file("small.safetensors"));
  std::string causes;
  for (std::size_t size = 0; size <= file.size(); ++size) {
    causes += cause_of(file.substr(0, size));
  }
  EXPECT_EQ(causes, verdicts().prefixes);
}

TEST(SafetensorsReader, JudgesEveryBitFlipOfTheHeaderAsRustDoes) {
  std::string file = read_file(reference_file("small.safetensors"));
  const std::string expected = verdicts().flips;
  ASSERT_EQ(expected.size(), 8u * 128);
  std::string causes;
  for (std::size_t bit = 0; bit < expected.size(); ++bit) {
    const char mask = static_cast<char>(1 << bit % 8);
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ mask);
    causes += cause_of(file);
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ mask);
  }
  EXPECT_EQ(causes, expected);
}

TEST(SafetensorsReader, RefusesHeadersAboveTheCapWithoutReadingThem) {
  for (const std::uint64_t length :
       {std::uint64_t{100'000'001},
        std::uint64_t{1} << 63,
        ~std::uint64_t{0}}) {
    std::string file(64, ' ');
    for (std::size_t i = 0; i < 8; ++i) {
      file[i] = static_cast<char>(length >> (8 * i) & 0xFF);
    }
    EXPECT_EQ(cause_of(file), 'L') << length;
  }
}

std::string tensor(const std::string& fields) {
  return file_text("{\"t\":{" + fields + "}}", std::string(8, 'x'));
}

// Eight bytes of data follow each header.
TEST(SafetensorsReader, RefusesMalformedHeadersWithTheRightCause) {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const auto two = [](const char* a, const char* b) {
    return file_text(
        std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + a +
            R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
        std::string(8, 'x'));
  };
  const std::pair<std::string, char> cases[] = {
      {tensor(good), '.'},
      {tensor(good + R"(,"note":{"any":[1,null,{"x":-1.5}]})"), '.'},
      {two("[4,8]", "[0,4]"), '.'},
      {two("[0,4]", "[2,6]"), 'O'}, // Overlap.
      {two("[0,4]", "[0,4]"), 'O'},
      {two("[0,4]", "[5,9]"), 'O'}, // Gap.
      {two("[1,5]", "[5,9]"), 'O'}, // Does not begin at 0.
      {two("[0,4]", "[8,4]"), 'O'}, // decreasing
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 'I'},
      {tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), 'I'},
      {tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 'T'},
      {tensor(R"("dtype":"F32","shape":[],"data_offsets":[0,8])"), 'T'},
      {tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 'M'},
      {tensor(R"("dtype":"F6_E2M3","shape":[2],"data_offsets":[0,1])"), 'M'},
      {tensor(R"("dtype":"F32","shape":[4294967296,4294967296],)"
              R"("data_offsets":[0,8])"),
       'V'},
      {tensor(R"("dtype":"F64","shape":[2305843009213693952],)"
              R"("data_offsets":[0,8])"),
       'V'},
      {tensor(R"("dtype":"U8","shape":[9223372036854775808,0],)"
              R"("data_offsets":[0,0])"),
       'V'},
      {tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 'J'},
      {tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 'J'},
      {tensor(R"("dtype":"F32","shape":[18446744073709551616],)"
              R"("data_offsets":[0,8])"),
       'J'},
      {tensor(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 'J'},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 'J'},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), 'J'},
      {tensor(R"("dtype":"F32","shape":[2])"), 'J'},
      {tensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), 'J'},
      {tensor(good + R"(,"dtype":"F32")"), 'D'},
      {file_text("{}", ""), '.'},
      {file_text("{}    ", ""), '.'},
      {file_text("", ""), 'J'},
      {file_text("[]", ""), 'J'},
      {file_text("{} {}", ""), 'J'},
      {file_text(std::string("{}\0\0", 4), ""), 'J'},
      {file_text("\xEF\xBB\xBF{}", ""), 'J'},
      {file_text("{\"t\":1}", ""), 'J'},
      {file_text("{\"t\":null}", ""), 'J'},
      {file_text("{\"\xff\":1}", ""), 'U'},
      {file_text(R"({"\ud800":1})", ""), 'J'},
      {file_text(R"({"__metadata__":null})", ""), '.'},
      {file_text(R"({"__metadata__":{}})", ""), '.'},
      {file_text(R"({"__metadata__":{"a":1}})", ""), 'J'},
      {file_text(R"({"__metadata__":{"a":"1","a":"2"}})", ""), 'D'},
      {file_text(R"({"__metadata__":{},"__metadata__":{}})", ""), 'D'},
  };
  for (const auto& [file, cause] : cases) {
    EXPECT_EQ(cause_of(file), cause) << file.substr(8);
  }
}

TEST(SafetensorsReader, RejectsADuplicateName) {
  const std::string entry =
      R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(cause_of(file_text('{' + entry + '}')), '.');
  EXPECT_EQ(cause_of(file_text('{' + entry + ',' + entry + '}')), 'D');
  // The same name with another escape.
  const std::string other =
      R"("\u0074":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(cause_of(file_text('{' + entry + ',' + other + '}')), 'D');
}

TEST(SafetensorsReader, RejectsDeepNestingAnywhere) {
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(cause_of(file_text(deep)), 'J');
  EXPECT_EQ(cause_of(file_text("{\"t\":" + deep)), 'J');
  EXPECT_EQ(cause_of(file_text("{\"t\":{\"other\":" + deep)), 'J');
  const auto nested = [](std::size_t depth) {
    return file_text(
        R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":)" +
        std::string(depth, '[') + std::string(depth, ']') + "}}");
  };
  EXPECT_EQ(cause_of(nested(100)), '.');
  EXPECT_EQ(cause_of(nested(127)), 'J');
}

TEST(SafetensorsReader, NamesFileTensorAndCauseInItsMessages) {
  TempDir folder;
  const auto path = folder.write(
      "m.safetensors",
      file_text(
          R"({"layer.0":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
          std::string(8, 'x')));
  try {
    File file(path);
    FAIL();
  } catch (const SizeMismatchError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    EXPECT_THAT(error.what(), HasSubstr("tensor 'layer.0'"));
    EXPECT_THAT(
        error.what(),
        HasSubstr("8 bytes of data, but its shape and dtype F32 need 12"));
  }
}

TEST(SafetensorsReader, KeepsHostileNamesOutOfItsMessages) {
  const std::string name = std::string(100'000, 'a') + "\\n\\u001b[2J";
  try {
    parse(bytes_of(file_text("{\"" + name + "\":1}")), "x");
    FAIL();
  } catch (const InvalidJsonError& error) {
    EXPECT_LT(std::string(error.what()).size(), 400u);
  }
}

TEST(SafetensorsReader, ReportsErrorsOfTheSystem) {
  TempDir folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<std::filesystem::path, const char*> cases[] = {
      {folder.path() / "none.safetensors", "No such file"},
      {folder.path(), "it is a folder"},
      {pipe, "it is not a file"},
  };
  for (const auto& [path, text] : cases) {
    try {
      File file(path);
      FAIL() << path;
    } catch (const SystemError& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
  EXPECT_THROW(File(folder.write("empty", "")), HeaderTooSmallError);
}

TEST(SafetensorsDtypes, HaveTheFormatsNames) {
  for (int i = 0; i < kNumDtypes; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(try_parse_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_name(Dtype::kF8E5M2Fnuz), "F8_E5M2FNUZ");
  EXPECT_EQ(dtype_bits(Dtype::kF4), 4);
  EXPECT_EQ(dtype_bits(Dtype::kF6E3M2), 6);
  EXPECT_EQ(dtype_bits(Dtype::kU64), 64);
  EXPECT_EQ(try_parse_dtype("F31"), std::nullopt);
}

} // namespace
} // namespace accelerate::testing
