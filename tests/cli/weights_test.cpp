// SPDX-License-Identifier: Apache-2.0
// `accelerate estimate-memory` and `accelerate merge-weights`.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "accelerate/files/safetensors_index.h"
#include "safetensors/oracle.h"
#include "safetensors/reference.h"
#include "sizing/small_llama.h"
#include "support/program.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
namespace fs = std::filesystem;
using safetensors::Dtype;

ProcessResult estimate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {kProgram, "estimate-memory"});
  return run_process(arguments);
}

TEST(EstimateMemory, WritesJson) {
  TempDir folder;
  const auto result = estimate({write_llama(folder, Dtype::kF32, 4), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(
      json.at("largest_layers"),
      nlohmann::json({"model.layers.0", "model.layers.1"}));
  const auto& rows = json.at("estimates");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].at("total_bytes"), 312);
  EXPECT_EQ(rows[0].at("largest_layer_bytes"), 96);
  EXPECT_EQ(rows[0].at("training_bytes"), 4 * 312);
  EXPECT_EQ(rows[2].at("training_bytes"), nullptr);
}

TEST(EstimateMemory, DrawsATableOfTheDtypesAskedFor) {
  TempDir folder;
  write_llama(folder, Dtype::kF32, 4);
  const auto result = run_process(
      {"sh",
       "-c",
       "cd " + folder.path().string() + " && " + kProgram +
           " estimate-memory . --dtypes float32 int8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "┌─────────────────────────────────────────────────────────────┐\n"
      "│                Memory Usage for loading `.`                 │\n"
      "├─────────┬───────────────┬─────────────┬─────────────────────┤\n"
      "│  dtype  │ Largest Layer │ Total Size  │ Training using Adam │\n"
      "├─────────┼───────────────┼─────────────┼─────────────────────┤\n"
      "│ float32 │  96.0 bytes   │ 312.0 bytes │       1.22 KB       │\n"
      "│  int8   │  24.0 bytes   │ 78.0 bytes  │         N/A         │\n"
      "└─────────┴───────────────┴─────────────┴─────────────────────┘\n");
}

TEST(EstimateMemory, SaysWhatEachStageTakes) {
  TempDir folder;
  const auto result = estimate(
      {write_llama(folder, Dtype::kF32, 4), "--num_processes", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("num_processes"), 4);
  // So small that all of it is one unit: 312 bytes, 78 on each process.
  const std::tuple<const char*, int, int, int> expected[] = {
      {"DDP", 312, 312, 624},
      {"1", 312, 312 + 78, 156},
      {"2", 312, 78 + 3 * 312, 156},
      {"3", 78 + 2 * 312, 78 + 3 * 312, 156},
      {"3, master_weights", 78 + 312, 78 + 3 * 312, 156},
  };
  const auto& rows = json.at("sharding");
  ASSERT_EQ(rows.size(), std::size(expected));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [stage, parameters, gradients, state] = expected[i];
    EXPECT_EQ(rows[i].at("stage"), stage);
    EXPECT_EQ(rows[i].at("parameter_bytes"), parameters) << stage;
    EXPECT_EQ(rows[i].at("gradient_bytes"), gradients) << stage;
    EXPECT_EQ(rows[i].at("optimizer_bytes"), state) << stage;
    EXPECT_EQ(rows[i].at("total_bytes"), parameters + gradients + state);
  }
  const auto table = estimate({folder.path(), "--num_processes", "2"}).out;
  EXPECT_THAT(table, HasSubstr("each of 2 processes"));
  EXPECT_THAT(table, HasSubstr("│ 3, master_weights │"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "\nStage 3 needs more memory than DDP because this model is small: "
          "in addition to its\nshard, each process holds several full copies "
          "of the largest shard unit (312.0 bytes) while it computes.\n"));
  EXPECT_EQ(estimate({folder.path(), "--num_processes", "1"}).exit_code, 2);

  // Shards of a copy on 4 of 8 processes are as large as those on 4 processes.
  const auto sharded = [&](std::vector<std::string> options) {
    options.insert(options.begin(), folder.path());
    options.emplace_back("--json");
    const auto result = estimate(options);
    return nlohmann::json::parse(result.out).at("sharding");
  };
  EXPECT_EQ(
      sharded({"--num_processes", "8", "--num_replicas", "2"}),
      sharded({"--num_processes", "4"}));
  const auto uneven =
      estimate({folder.path(), "--num_processes", "8", "--num_replicas", "3"});
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_THAT(uneven.err, HasSubstr("a multiple of 3 for --num_processes"));
}

// 16 blocks of a MiB: shards of 8 processes are smaller than the whole.
TEST(EstimateMemory, ExplainsNothingIfShardingSavesMemory) {
  TempDir folder;
  std::string header = "{";
  constexpr int kBlockBytes = 1 << 20;
  for (int i = 0; i < 16; ++i) {
    header += (i == 0 ? "" : ",") + ("\"h." + std::to_string(i)) +
              R"(.w":{"dtype":"F32","shape":[262144],"data_offsets":[)" +
              std::to_string(i * kBlockBytes) + "," +
              std::to_string((i + 1) * kBlockBytes) + "]}";
  }
  header += "}";
  const auto length = static_cast<uint64_t>(header.size());
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  folder.write("model.safetensors", file + std::string(16 * kBlockBytes, '\0'));
  const auto result = estimate({folder.path(), "--num_processes", "8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("needs more memory")));
}

// The layout of huggingface_hub: refs/main names a snapshot.
TEST(EstimateMemory, FindsModelsInTheCacheOfTheHub) {
  TempDir home;
  const auto entry = home.path() / "hub/models--meta--llama";
  for (const char* revision : {"a1", "b2"}) {
    const TempDir model;
    write_llama(model, Dtype::kF32, 4);
    std::filesystem::create_directories(entry / "snapshots");
    std::filesystem::copy(model.path(), entry / "snapshots" / revision);
  }
  std::filesystem::remove(entry / "snapshots/a1/model.safetensors");
  std::filesystem::create_directory(entry / "refs");
  home.write("hub/models--meta--llama/refs/main", "b2");
  const auto run = [&](const char* variable, const std::string& folder) {
    return run_process(
        {kProgram, "estimate-memory", "meta/llama"}, {{variable, folder}});
  };
  const std::string cache = home.path() / "hub";
  for (const auto& result :
       {run("HF_HOME", home.path().string()),
        run("HF_HUB_CACHE", cache),
        run("HUGGINGFACE_HUB_CACHE", cache)}) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("`meta/llama`"));
    EXPECT_THAT(result.out, HasSubstr("1.22 KB"));
  }
  EXPECT_EQ(
      run_process(
          {kProgram, "estimate-memory", "meta/other"},
          {{"HF_HOME", home.path().string()}})
          .err,
      "accelerate: [estimate-memory] 'meta/other' is not a file, a folder or a "
      "model in the Hub cache (" +
          cache +
          "). Download the model first (`hf download ORG/NAME`), or pass the "
          "folder of its safetensors files\n");
}

TEST(EstimateMemory, ReportsGuesses) {
  TempDir folder;
  write_llama(folder, Dtype::kF32, 4);
  folder.write("config.json", R"({"model_type":"novel"})");
  auto result = estimate({folder.path(), "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(
      result.err,
      HasSubstr("the model_type 'novel' is unknown. Each numbered module"));
  auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("estimates")[0].at("total_bytes"), 280);
  EXPECT_EQ(json.at("estimates")[0].at("largest_layer_bytes"), 96);
  fs::remove(folder.path() / "config.json");
  result = estimate({folder.path() / "model.safetensors"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("no config.json with a model_type"));
}

TEST(EstimateMemory, ReadsTheFilesThatAnIndexNames) {
  const auto result =
      estimate({reference_file("sharded"), "--dtypes", "float32", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(
      nlohmann::json::parse(result.out).at("estimates")[0].at("total_bytes"),
      1344); // according to its metadata
}

TEST(EstimateMemory, RejectsUnreadableFiles) {
  TempDir folder;
  folder.write("model.safetensors", "no such format");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "needs PATH"},
      {{"/no/such/folder"}, "'/no/such/folder'"},
      {{"google/bert-base-cased"}, "or a model in the Hub cache ("},
      {{folder.path()}, "claims"},
      {{reference_file("sharded"), "--dtypes", "float8"}, "float8"},
  };
  for (const auto& [arguments, part] : cases) {
    const auto result = estimate(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_THAT(result.out, IsEmpty());
  }
  write_llama(folder, Dtype::kF32, 4);
  folder.write("config.json", "[");
  EXPECT_THAT(estimate({folder.path()}).err, HasSubstr("is not a JSON object"));
}

TEST(MergeWeights, WritesOneFileIntoAFolderOrUnderAName) {
  TempDir folder;
  const std::string expected = read_file(reference_file("sharded") / "merged");
  for (const char* name : {"new/folder", "x.safetensors"}) {
    const auto target = folder.path() / name;
    const auto result = run_process(
        {kProgram, "merge-weights", reference_file("sharded"), target});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, HasSubstr("4 files with 12 tensors merged into"));
    EXPECT_EQ(
        read_file(
            fs::is_directory(target) ? target / "model.safetensors" : target),
        expected);
  }
}

TEST(MergeWeights, RejectsFilesThatCannotBeMerged) {
  TempDir folder;
  const auto target = folder.path() / "merged";
  auto result = run_process({kProgram, "merge-weights", folder.path(), target});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("has neither model.safetensors nor"));
  EXPECT_FALSE(fs::exists(target));

  // From a checkpoint without its manifest, only whole tensors are in the file.
  const auto merged = reference_file("sharded") / "merged";
  for (const char* name : {"model.safetensors", "rank_0-at-4.safetensors"}) {
    fs::copy_file(merged, folder.path() / name);
  }
  result = run_process({kProgram, "merge-weights", folder.path(), target});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("has no checkpoint.json"));
  EXPECT_FALSE(fs::exists(target));
}

TEST(MergeWeights, RunsNothingOfAPickle) {
  TempDir folder;
  const auto target = folder.path() / "merged";
  const auto made = folder.path() / "made";
  const std::string command = "touch " + made.string();
  const std::string size(1, static_cast<char>(command.size()));
  const std::pair<std::string, const char*> cases[] = {
      {"", "ends too early"},
      {"no pickle", "has the instruction 110"},
      {"\x80\x02.", "reads more values than it contains"},
      {"\x80\x02h\x07.", "refers to a value that it has not stored"},
      {"\x80\x02X\xff\xff\xff\xff.", "ends too early"},
      {"\x80\x02N.", "has an unexpected object instead of"},
      // os.system(command)
      {"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + size + command + "\x85R.",
       "has an unexpected object instead of"},
  };
  for (const auto& [bytes, part] : cases) {
    folder.write(".metadata", bytes);
    const auto result =
        run_process({kProgram, "merge-weights", folder.path(), target});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_FALSE(fs::exists(made));
}

TEST(WeightsOracle, MergesWhatTorchDistributedWrites) {
  NEEDS_ORACLE();
  TempDir folder;
  ask_oracle({"distribute", folder.path()});
  const auto source = folder.path() / "dcp";
  const auto target = folder.path() / "merged.safetensors";
  auto result = run_process({kProgram, "merge-weights", source, target});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 files with 7 tensors merged into"));
  EXPECT_THAT(result.err, HasSubstr("'model.note' is not a tensor"));
  EXPECT_EQ(
      read_file(target), read_file(folder.path() / "expected.safetensors"));
  // A part that is truncated, and one that is missing.
  const auto part = source / "__1_0.distcp";
  fs::resize_file(part, fs::file_size(part) - 100);
  result = run_process({kProgram, "merge-weights", source, target});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("'__1_0.distcp' that ends before"));
  fs::remove(part);
  result = run_process({kProgram, "merge-weights", source, target});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("__1_0.distcp"));
}

void expect_originals_figures(
    const fs::path& folder,
    const nlohmann::json& original) {
  const auto json = nlohmann::json::parse(estimate({folder, "--json"}).out);
  EXPECT_TRUE(json.at("is_known").get<bool>()) << folder;
  const std::string table = estimate({folder}).out;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& ours = json.at("estimates").at(i);
    const auto& row = original.at("rows").at(i);
    EXPECT_EQ(ours.at("dtype"), row.at("dtype"));
    EXPECT_EQ(ours.at("largest_layer_bytes"), row.at("bytes")[0]) << folder;
    EXPECT_EQ(ours.at("total_bytes"), row.at("bytes")[1]) << folder;
    EXPECT_EQ(ours.at("training_bytes"), row.at("bytes")[2]) << folder;
    for (const std::string words : row.at("words")) {
      EXPECT_THAT(table, HasSubstr(' ' + words + ' '));
    }
  }
}

// Random models of every family in the table, whole and sharded; also a real
// BERT model where ACCELERATE_REAL_MODEL names its folder.
TEST(WeightsOracle, EstimatesAndMergesModelsOfTransformers) {
  NEEDS_ORACLE();
  TempDir folder;
  if (const char* real = std::getenv("ACCELERATE_REAL_MODEL")) {
    fs::create_directory_symlink(real, folder.path() / "real");
  }
  const auto models =
      nlohmann::json::parse(ask_oracle({"models", folder.path()}));
  ASSERT_GE(models.size(), 50u);
  int num_sharded = 0;
  std::vector<std::string> pairs = {"compare"};
  for (const auto& [name, original] : models.items()) {
    const fs::path model = folder.path() / name;
    expect_originals_figures(model, original);
    if (!fs::exists(model / safetensors::kIndexName) || ++num_sharded > 3) {
      continue;
    }
    const auto merged = folder.path() / (name + ".safetensors");
    EXPECT_EQ(
        run_process({kProgram, "merge-weights", model, merged}).exit_code, 0);
    pairs.insert(pairs.end(), {model, merged});
  }
  EXPECT_GT(num_sharded, 3);
  EXPECT_EQ(ask_oracle(pairs), "equal");
}

} // namespace
} // namespace accelerate::testing
