// SPDX-License-Identifier: Apache-2.0
// Models in several files, compared with Hugging Face's.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/files/safetensors_index.h"
#include "safetensors/reference.h"
#include "support/other_locale.h"

namespace accelerate::testing {
namespace {

using namespace safetensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

nlohmann::json tables() {
  return nlohmann::json::parse(read_file(reference_file("tables.json")));
}

// The tensors of the reference folder, in the order of the state dict.
struct ReferenceState {
  ReferenceState() {
    for (int i = 0; i < 6; ++i) {
      for (const char* kind : {"weight", "Gewicht-ß"}) {
        auto& data = buffers.emplace_back(8 * (i + 1), static_cast<float>(i));
        views.push_back(
            {.name = "layer." + std::to_string(i) + "." + kind,
             .dtype = Dtype::kF32,
             .shape = {i + 1, 8},
             .data = std::as_bytes(std::span(data))});
      }
    }
  }
  std::deque<std::vector<float>> buffers;
  std::vector<TensorView> views;
};

TEST(SafetensorsIndex, SavesHuggingFacesFilesByteForByte) {
  TempDir folder;
  const ReferenceState state;
  const auto written =
      save_sharded(folder.path(), state.views, {.max_shard_bytes = 500});
  ASSERT_THAT(
      written,
      ElementsAre(
          "model-00001-of-00004.safetensors",
          "model-00002-of-00004.safetensors",
          "model-00003-of-00004.safetensors",
          "model-00004-of-00004.safetensors",
          "model.safetensors.index.json"));
  for (const auto& name : written) {
    EXPECT_EQ(
        read_file(folder.path() / name),
        read_file(reference_file("sharded") / name))
        << name;
  }
}

TEST(SafetensorsIndex, SplitsAsHuggingFaceHubDoes) {
  const std::string data(100, 'x');
  const nlohmann::json table = tables();
  ASSERT_EQ(table.at("split").size(), 40u);
  for (const auto& row : table.at("split")) {
    std::vector<TensorView> tensors;
    for (const std::int64_t size : row.at("sizes")) {
      char name[16];
      std::snprintf(name, sizeof(name), "t%02zu", tensors.size());
      tensors.push_back(
          {.name = name,
           .dtype = Dtype::kU8,
           .shape = {size},
           .data = bytes_of(data).first(static_cast<std::size_t>(size))});
    }
    const ShardPlan plan = split_into_shards(tensors, 40);
    std::vector<std::string> files;
    for (const auto& tensor : tensors) {
      files.push_back(plan.index.weight_map.at(tensor.name));
    }
    EXPECT_EQ(files, row.at("files").get<std::vector<std::string>>()) << row;
    EXPECT_EQ(plan.index.total_size, row.at("total").get<std::uint64_t>());
  }
}

TEST(SafetensorsIndex, ReadsSizesAsHuggingFaceDoes) {
  const nlohmann::json table = tables();
  ASSERT_EQ(table.at("sizes").size(), 11u);
  for (const auto& [text, bytes] : table.at("sizes").items()) {
    EXPECT_EQ(parse_size(text), bytes.get<std::uint64_t>()) << text;
  }
  EXPECT_EQ(parse_size("1000"), 1000u);
  const OtherLocale other;
  EXPECT_EQ(parse_size("1.5gib"), 3u << 29);
  for (const char* text :
       {"", "GB", "10 apples", "-1GB", "1GB2", "nanGB", "infGB", "1e30GB"}) {
    EXPECT_THROW(parse_size(text), ConfigError) << text;
  }
}

TEST(SafetensorsIndex, OpensAFolderAFileOrAnIndex) {
  const fs::path folder = reference_file("sharded");
  for (const auto& path : {folder, folder / kIndexName}) {
    const Checkpoint checkpoint(path);
    EXPECT_EQ(checkpoint.files().size(), 4u);
    EXPECT_EQ(checkpoint.tensors().size(), 12u);
    EXPECT_TRUE(checkpoint.contains("layer.5.weight"));
    EXPECT_THAT(checkpoint.tensor("layer.5.weight").shape, ElementsAre(6, 8));
    EXPECT_THROW(checkpoint.tensor("layer.6.weight"), TensorNotFoundError);
  }
  EXPECT_EQ(Checkpoint(folder / "merged").tensors().size(), 12u);
}

TEST(SafetensorsIndex, MergesIntoThePythonLibrarysBytes) {
  TempDir folder;
  const auto target = folder.path() / "one.safetensors";
  merge(Checkpoint(reference_file("sharded")), target);
  EXPECT_EQ(read_file(target), read_file(reference_file("sharded") / "merged"));
}

TEST(SafetensorsIndex, RemovesWhatAnEarlierSaveLeft) {
  TempDir folder;
  const ReferenceState state;
  folder.write("model-00007-of-00009.safetensors", "old");
  folder.write("model-of-mine.safetensors", "kept");
  folder.write("config.json", "{}");
  save_sharded(folder.path(), state.views, {.max_shard_bytes = 500});
  EXPECT_FALSE(fs::exists(folder.path() / "model-00007-of-00009.safetensors"));
  EXPECT_EQ(Checkpoint(folder.path()).files().size(), 4u);
  save_sharded(folder.path(), state.views);
  EXPECT_THAT(
      names_in(folder.path()),
      UnorderedElementsAre(
          "model.safetensors", "model-of-mine.safetensors", "config.json"));
  save_sharded(folder.path(), state.views, {.max_shard_bytes = 1});
  EXPECT_FALSE(fs::exists(folder.path() / "model.safetensors"));
  EXPECT_EQ(Checkpoint(folder.path()).files().size(), 12u);
}

TEST(SafetensorsIndex, SaysWhichOldFileItCannotRemove) {
  TempDir folder;
  // A folder that is not empty is kept in any case.
  fs::create_directories(folder.path() / "model-00001-of-00002.safetensors/x");
  try {
    save_sharded(folder.path(), {});
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model-00001-of-00002.safetensors'"));
    EXPECT_THAT(error.what(), HasSubstr("cannot remove"));
  }
}

TEST(SafetensorsIndex, WritesOneFileForAModelWithoutTensors) {
  TempDir folder;
  EXPECT_THAT(
      save_sharded(folder.path() / "new" / "deep", {}),
      ElementsAre("model.safetensors"));
}

TEST(SafetensorsIndex, TakesOldAndForeignKeysButNothingMalformed) {
  const auto total = [](const std::string& text) {
    return parse_index(text, "x").total_size;
  };
  EXPECT_EQ(total(R"({"weight_map":{}})"), std::nullopt);
  EXPECT_EQ(total(R"({"metadata":null,"weight_map":{}})"), std::nullopt);
  EXPECT_EQ(
      total(R"({"metadata":{"total_size":8.0,"x":[{}]},"weight_map":{}})"), 8u);
  EXPECT_EQ(
      total(R"({"y":{"weight_map":3},"metadata":{"total_size":8,)"
            R"("total_parameters":2},"weight_map":{"a":"f"}})"),
      8u);
  const std::pair<std::string, const char*> cases[] = {
      {"", "is not JSON"},
      {"{", "is not JSON"},
      {"[]", "an array instead of an object"},
      {"{}", "has no weight_map"},
      {"\xff", "is not valid UTF-8 at byte 0"},
      {R"({"weight_map":[]})", "an array instead of an object"},
      {R"({"weight_map":{},"weight_map":{}})", "weight_map twice"},
      {R"({"weight_map":{"a":1}})", "a number instead of a string"},
      {R"({"weight_map":{"a":"f","a":"g"}})", "tensor 'a' twice"},
      {R"({"weight_map":{"a":"../f"}})", "to '../f', which is not the name"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "'/etc/passwd'"},
      {R"({"weight_map":{"a":".."}})", "'..'"},
      {R"({"weight_map":{"a":""}})", "''"},
      {R"({"weight_map":{"a":"f\u0000g"}})", "'f?g'"},
      {R"({"metadata":{"total_size":-8},"weight_map":{}})",
       "not a 64-bit integer"},
      {R"({"metadata":{"total_size":"8"},"weight_map":{}})",
       "a string instead of"},
      {"{\"x\":" + std::string(1'000'000, '['), "nested deeper"},
  };
  for (const auto& [text, part] : cases) {
    try {
      parse_index(text, "my.index.json");
      FAIL() << text.substr(0, 100);
    } catch (const InvalidIndexError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'my.index.json'"));
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

TEST(SafetensorsIndex, SaysWhatAFolderLacks) {
  TempDir folder;
  EXPECT_THROW(Checkpoint{folder.path()}, SystemError);
  const auto expect = [&](const char* part) {
    try {
      Checkpoint checkpoint(folder.path());
      FAIL();
    } catch (const InvalidIndexError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  folder.write(kIndexName, R"({"weight_map":{"a":"f.safetensors"}})");
  expect("names the file 'f.safetensors', which is missing from its folder");
  write_file(folder.path() / "f.safetensors", {});
  expect("assigns tensor 'a' to 'f.safetensors', which does not contain it");
}

TEST(SafetensorsIndex, RoundTripsItsText) {
  const ShardIndex index{
      .total_size = 12, .weight_map = {{"b\x7f", "f"}, {"a", "g"}}};
  EXPECT_EQ(
      format_index(index),
      "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"
      "  \"weight_map\": {\n    \"a\": \"g\",\n    \"b\\u007f\": \"f\"\n  "
      "}\n}\n");
  EXPECT_EQ(parse_index(format_index(index), "x"), index);
}

} // namespace
} // namespace accelerate::testing
