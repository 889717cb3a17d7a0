// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/manifest.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "core/base/checksum.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;

TEST(Checksum, IsXxh3) {
  // From the test vectors of the xxHash project.
  EXPECT_EQ(checksum_of(std::string_view()), "2d06800538d394c2");
  std::string text;
  Checksum pieces;
  for (int i = 0; i < 5000; ++i) {
    const auto piece = std::to_string(i);
    text += piece;
    pieces.add(piece);
  }
  EXPECT_EQ(pieces.text(), checksum_of(text));
}

TEST(Checksum, OfChunksAreXxh3OfEach) {
  // By Python's xxhash:
  //   "".join(xxh3_64(b[i:i + chunk]).hexdigest() for i in ...)
  const std::string expected =
      "e747d2a342fb45553ed00d59a64628217f6799eaea48e27d";
  constexpr size_t kChunk = 4 << 20;
  std::vector<std::byte> bytes((9 << 20) + 5);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i % 251);
  }
  const std::span all(bytes);
  EXPECT_EQ(chunked_checksum_of(all), expected);
  // The checksum of the concatenated text, which is long.
  EXPECT_EQ(
      checksum_of(std::string_view(chunked_checksum_of(all, 8192))),
      "520629c936f91218");
  EXPECT_EQ(chunked_checksum_of(all.first(kChunk)), expected.substr(0, 16));
  EXPECT_EQ(chunked_checksum_of({}), "");
  EXPECT_EQ(ChunkedChecksum().text(), "");
  for (const size_t step : {size_t{99'999}, kChunk, bytes.size()}) {
    ChunkedChecksum pieces;
    for (size_t i = 0; i < bytes.size(); i += step) {
      pieces.add(all.subspan(i).first(std::min(step, bytes.size() - i)));
    }
    EXPECT_EQ(pieces.text(), expected) << step;
  }
  bytes.back() ^= std::byte{1};
  EXPECT_NE(chunked_checksum_of(all), expected);
}

Manifest example() {
  Manifest manifest;
  manifest.moment = 7;
  manifest.world_size = 2;
  manifest.saved_at = 1'800'000'000'000;
  manifest.is_of_all = true;
  manifest.staged = ".staged-7";
  manifest.replaced = {"ema.safetensors"};
  manifest.files["model.safetensors"] = {12, "0123456789abcdef", 4096};
  manifest.files["old.safetensors"] = {13, "0123456789abcdef"};
  manifest.state["optimizer"]["groups.0.lr"] = 0.1;
  manifest.state["scheduler"] = nlohmann::json::object();
  return manifest;
}

TEST(Manifest, RoundTrips) {
  const auto manifest = example();
  const auto read = parse_manifest(format_manifest(manifest), "x");
  EXPECT_EQ(read.moment, 7);
  EXPECT_EQ(read.world_size, 2);
  EXPECT_EQ(read.saved_at, manifest.saved_at);
  EXPECT_TRUE(read.is_of_all);
  EXPECT_EQ(read.staged, ".staged-7");
  EXPECT_EQ(read.replaced, manifest.replaced);
  EXPECT_EQ(read.files, manifest.files);
  EXPECT_EQ(read.state, manifest.state);
  EXPECT_TRUE(nlohmann::json::parse(format_manifest(manifest)).is_object());
}

TEST(Manifest, RejectsEveryPrefixAndEveryFlippedBit) {
  const auto text = format_manifest(example());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(parse_manifest(text.substr(0, size), "x"), DataError) << size;
  }
  for (size_t i = 0; i < text.size() * 8; ++i) {
    auto flipped = text;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    EXPECT_THROW(parse_manifest(flipped, "x"), DataError) << i;
  }
}

/// A text with a valid checksum, as an attacker could write it.
std::string signed_text(std::string text) {
  text.resize(text.size() - 2); // "\n}"
  const auto checksum = checksum_of(text);
  return text + ",\n  \"checksum\": \"" + checksum + "\"\n}\n";
}

void expect_refused(const nlohmann::json& content, const std::string& why) {
  try {
    parse_manifest(signed_text(content.dump(2)), "the file");
    ADD_FAILURE() << "taken: " << content.dump();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[load_state] 'the file' "));
    EXPECT_THAT(error.what(), HasSubstr(why));
  }
}

TEST(Manifest, RejectsHostileTextWithAValidChecksum) {
  const auto text = format_manifest(example());
  auto good = nlohmann::json::parse(text);
  good.erase("checksum");
  EXPECT_NO_THROW(parse_manifest(signed_text(good.dump(2)), "x"));
  const nlohmann::json record = {
      {"bytes", 1}, {"checksum", "0123456789abcdef"}};
  for (const char* name : {"../x", "/etc/passwd", "a/b", "", "..", ".hidden"}) {
    auto content = good;
    content["files"][name] = record;
    expect_refused(content, "outside the checkpoint");
    content = good;
    content["replaced"].push_back(name);
    expect_refused(content, "outside the checkpoint");
  }
  for (const char* name : {"..", "/tmp", ".staged-/../..", "x"}) {
    auto content = good;
    content["staged"] = name;
    expect_refused(content, "outside the checkpoint");
  }
  auto settled = good; // once all files are in place
  settled.erase("replaced");
  EXPECT_NO_THROW(parse_manifest(signed_text(settled.dump(2)), "x"));
  auto newer = good;
  newer["format"] = 3;
  expect_refused(newer, "cannot be read");
  auto tiny = good;
  tiny["files"]["model.safetensors"]["chunk"] = 1;
  expect_refused(tiny, "chunks of only 1 bytes");
  auto lacking = good;
  lacking["files"]["model.safetensors"]["bytes"] = 4097;
  expect_refused(
      lacking, "has 1 checksums for the 2 chunks of 'model.safetensors'");
  lacking["files"]["model.safetensors"]["bytes"] =
      std::numeric_limits<uint64_t>::max();
  expect_refused(lacking, "checksums for the");
  auto bare = good;
  bare.erase("files");
  expect_refused(bare, "is incomplete");
  auto odd = good;
  odd["state"]["optimizer"] = 3;
  expect_refused(odd, "invalid state");
  std::string nest(100'000, '[');
  const auto hostile = signed_text(
      "{\n  \"state\": " + nest + std::string(100'000, ']') + "\n}");
  EXPECT_THROW(parse_manifest(hostile, "x"), DataError);
  EXPECT_THROW(
      parse_manifest(signed_text("{\n  \"a\": 1,\n  \"a\": 2\n}"), "x"),
      DataError);
}

} // namespace
} // namespace accelerate::testing
