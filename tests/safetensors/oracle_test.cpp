// SPDX-License-Identifier: Apache-2.0
// Compared with the Python package `safetensors`, on random files.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "safetensors/cause.h"
#include "safetensors/oracle.h"
#include "safetensors/reference.h"

namespace accelerate::testing {
namespace {

using namespace safetensors;
using ::testing::HasSubstr;

// Python cannot write the 6-bit types, but its reader knows them.
PatternTensors random_tensors(std::mt19937& random, bool with_six_bits) {
  PatternTensors tensors;
  const auto pick = [&](std::uint32_t below) { return random() % below; };
  const auto count = pick(30);
  for (std::uint32_t i = 0; i < count; ++i) {
    auto dtype = static_cast<Dtype>(pick(kNumDtypes));
    if (!with_six_bits && dtype_bits(dtype) == 6) {
      dtype = Dtype::kF4;
    }
    std::vector<std::int64_t> shape;
    std::uint64_t bits = static_cast<std::uint64_t>(dtype_bits(dtype));
    for (auto dims = pick(4); dims > 0; --dims) {
      shape.push_back(pick(6));
    }
    if (bits < 8) {
      shape.push_back(4 * pick(4));
    }
    for (const auto dim : shape) {
      bits *= static_cast<std::uint64_t>(dim);
    }
    std::string name = "layer." + std::to_string(pick(1000)) + ".é\"\\\n" +
                       static_cast<char>('a' + pick(26)) + std::to_string(i);
    tensors.add(std::move(name), dtype, std::move(shape), bits / 8);
  }
  return tensors;
}

TEST(SafetensorsOracle, PythonRewritesOurFilesByteForByte) {
  NEEDS_ORACLE();
  std::mt19937 random(1);
  TempDir folder;
  const auto path = folder.path() / "ours";
  const auto other = folder.path() / "theirs";
  for (int round = 0; round < 10; ++round) {
    const Metadata metadata =
        round % 2 == 0
            ? Metadata{}
            : Metadata{{"form\tat", "pt € " + std::to_string(round)}};
    write_file(
        path,
        random_tensors(random, false).views(),
        {.metadata = metadata, .sync = false});
    ask_oracle({"rewrite", path, other});
    ASSERT_EQ(read_file(path), read_file(other)) << round;
  }
}

TEST(SafetensorsOracle, PythonReadsOurFiles) {
  NEEDS_ORACLE();
  std::mt19937 random(2);
  TempDir folder;
  const auto path = folder.path() / "ours";
  for (int round = 0; round < 5; ++round) {
    const PatternTensors tensors = random_tensors(random, true);
    const Metadata metadata = {{"b", "2"}, {"a", "1"}, {"c", ""}};
    write_file(path, tensors.views(), {.metadata = metadata, .sync = false});
    const auto seen = nlohmann::json::parse(ask_oracle({"dump", path}));
    ASSERT_EQ(seen.at("tensors").size(), tensors.views().size());
    EXPECT_EQ(seen.at("metadata").get<Metadata>(), metadata);
    for (const auto& tensor : tensors.views()) {
      const auto& info = seen.at("tensors").at(tensor.name);
      EXPECT_EQ(info.at("dtype"), dtype_name(tensor.dtype));
      EXPECT_EQ(
          info.at("shape").get<std::vector<std::int64_t>>(), tensor.shape);
      std::string hex;
      for (const auto byte : tensor.data) {
        constexpr const char* kDigits = "0123456789abcdef";
        hex += kDigits[std::to_integer<int>(byte) / 16];
        hex += kDigits[std::to_integer<int>(byte) % 16];
      }
      EXPECT_EQ(info.at("data"), hex);
    }
  }
}

// Changes one to three bytes, mostly in the header, or cuts the end off.
std::string damaged(std::string file, std::mt19937& random) {
  static constexpr char kAlphabet[] = "0123456789,:[]{}\"\\ abFU\xc3\xff-.e";
  const auto pick = [&](std::size_t below) { return random() % below; };
  if (pick(20) == 0) {
    return file.substr(0, pick(file.size()));
  }
  const std::size_t header = static_cast<unsigned char>(file[0]) +
                             256u * static_cast<unsigned char>(file[1]);
  for (auto edits = 1 + pick(3); edits > 0; --edits) {
    const auto at = pick(5) == 0 ? pick(file.size()) : 8 + pick(header);
    const char c = kAlphabet[pick(sizeof(kAlphabet) - 1)];
    switch (pick(4)) {
      case 0:
        file[at] = c;
        break;
      case 1:
        file[at] = static_cast<char>(file[at] ^ (1 << pick(8)));
        break;
      case 2:
        std::swap(file[at], file[8 + pick(header)]);
        break;
      default:
        file.erase(at, 1);
        file.insert(8 + pick(header - 1), 1, c);
    }
  }
  return file;
}

std::string rust_causes(const std::vector<std::string>& files) {
  std::string all;
  for (const auto& file : files) {
    for (int shift = 0; shift < 32; shift += 8) {
      all += static_cast<char>(file.size() >> shift & 0xFF);
    }
    all += file;
  }
  TempDir folder;
  return ask_oracle({"verdicts", folder.write("files", all)});
}

TEST(SafetensorsOracle, RustAgreesOnThousandsOfDamagedFiles) {
  NEEDS_ORACLE();
  std::mt19937 random(3);
  std::vector<std::string> files;
  for (int i = 0; i < 100; ++i) {
    const auto whole = text_of(serialize(random_tensors(random, true).views()));
    files.push_back(whole);
    for (int j = 0; j < 200; ++j) {
      files.push_back(damaged(whole, random));
    }
  }
  std::string ours;
  for (const auto& file : files) {
    ours += cause_of(file);
  }
  const std::string theirs = rust_causes(files);
  ASSERT_EQ(theirs.size(), ours.size());
  std::map<char, int> seen;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ++seen[ours[i]];
    if (ours[i] != theirs[i] && ours[i] != 'D') { // Rust keeps one of the two.
      // Two tensors at the same offset: Rust checks them in random order.
      const std::vector<std::string> again(50, files[i]);
      ASSERT_THAT(rust_causes(again), HasSubstr(ours.substr(i, 1)))
          << files[i].substr(8);
    }
  }
  for (const char cause : {'.', 'H', 'I', 'J', 'L', 'O', 'T', 'U'}) {
    EXPECT_GT(seen[cause], 5) << cause;
  }
}

} // namespace
} // namespace accelerate::testing
