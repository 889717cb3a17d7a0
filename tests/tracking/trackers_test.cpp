// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "accelerate/error.h"
#include "accelerate/tracking.h"
#include "support/temp_dir.h"
#include "tracking/event_file.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;

struct Remembering : Tracker {
  explicit Remembering(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void start(const TrackedRun& run) override {
    calls.push_back("start " + run.project);
  }
  void store_configuration(const TrackedValues& values) override {
    calls.push_back("configuration " + values.front().first);
  }
  void log(const TrackedValues& values, int64_t step) override {
    calls.push_back(std::to_string(step) + " " + values.front().second.text());
  }
  void resume(int64_t step) override {
    calls.push_back("resume " + std::to_string(step));
  }
  std::string state() const override { return "state of " + name_; }
  void load_state(const std::string& state) override {
    calls.push_back("load " + state);
  }
  void finish() override { calls.push_back("finish"); }

  std::string name_;
  std::vector<std::string> calls;
};

struct Failing : Remembering {
  using Remembering::Remembering;
  void log(const TrackedValues&, int64_t) override {
    throw std::runtime_error("no room");
  }
  void finish() override { throw 1; }
};

TEST(TrackedValue, OfAnUnsignedNumberIsNeverNegative) {
  EXPECT_EQ(TrackedValue(~uint64_t{0}).number(), 0x1p64);
  EXPECT_EQ(TrackedValue(uint64_t{7}).text(), "7");
  EXPECT_EQ(TrackedValue(-7).text(), "-7");
}

TEST(Trackers, HandEverythingToEachInOrder) {
  const TempDir folder;
  auto one = std::make_shared<Remembering>("one");
  auto two = std::make_shared<Remembering>("two");
  {
    Trackers trackers(
        "sky",
        {.log_with = {one, two},
         .logging_dir = folder.path(),
         .configuration = {{"lr", 1}}});
    trackers.log({{"a", 1.5F}});
    trackers.log({{"a", size_t{7}}}, 10);
    trackers.log({{"a", "text"}});
    EXPECT_EQ(&trackers.get("two"), two.get());
    EXPECT_THROW(trackers.get("three"), UsageError);
  }
  EXPECT_THAT(
      one->calls,
      ElementsAre(
          "start sky",
          "configuration lr",
          "0 1.5",
          "10 7",
          "11 text",
          "finish"));
  EXPECT_EQ(one->calls, two->calls);
}

TEST(Trackers, GoOnWhereTheCheckpointWas) {
  const TempDir folder;
  Trackers::State state;
  {
    Trackers trackers(
        "sky",
        {.log_with = {std::make_shared<Remembering>("one")},
         .logging_dir = folder.path()});
    trackers.log({{"a", 1}}, 41);
    state = trackers.state();
  }
  auto one = std::make_shared<Remembering>("one");
  auto added = std::make_shared<Remembering>("added");
  Trackers trackers(
      "sky", {.log_with = {one, added}, .logging_dir = folder.path()});
  trackers.load_state(state);
  trackers.log({{"a", true}});
  EXPECT_THAT(
      one->calls,
      ElementsAre("start sky", "load state of one", "resume 42", "42 true"));
  EXPECT_THAT(added->calls, ElementsAre("start sky", "resume 42", "42 true"));
}

TEST(Trackers, OneThatFailsSaysSoOnceAndTheRunGoesOn) {
  const TempDir folder;
  auto failing = std::make_shared<Failing>("failing");
  auto other = std::make_shared<Remembering>("other");
  ::testing::internal::CaptureStderr();
  {
    Trackers trackers(
        "sky", {.log_with = {failing, other}, .logging_dir = folder.path()});
    for (int i = 0; i < 3; ++i) {
      trackers.log({{"a", i}});
    }
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("[tracker failing] log failed: no room"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_THAT(
      other->calls, ElementsAre("start sky", "0 0", "1 1", "2 2", "finish"));
}

TEST(Trackers, AFolderThatCannotBeWrittenEndsNoRun) {
  const TempDir folder;
  std::ofstream(folder.path() / "file") << "in the way";
  ::testing::internal::CaptureStderr();
  {
    Trackers trackers(
        "sky",
        {.log_with = {"jsonl", "csv", "tensorboard"},
         .logging_dir = folder.path() / "file"});
    trackers.log({{"a", 1}});
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3);
  EXPECT_THAT(said, HasSubstr("[tracker csv] start failed: [tracking] '"));
}

TEST(Trackers, RefuseWhatIsNoTrackerAndNoName) {
  const TempDir folder;
  const auto make = [&](std::vector<TrackerChoice> choices,
                        const std::string& project = "sky") {
    Trackers(
        project,
        {.log_with = std::move(choices), .logging_dir = folder.path()});
  };
  EXPECT_THROW(make({"tensorbord"}), UsageError);
  EXPECT_THROW(make({"jsonl", "jsonl"}), UsageError);
  EXPECT_THROW(make({"jsonl"}, "../sky"), UsageError);
  EXPECT_THROW(make({"jsonl"}, ""), UsageError);
}

TEST(Trackers, NobodyIsThereOnOtherProcesses) {
  Trackers nobody;
  EXPECT_TRUE(nobody.empty());
  nobody.log({{"a", 1}});
  nobody.get("tensorboard").log({{"a", 1}}, 1);
}

TEST(Trackers, CutWhatAKilledProcessLeftUnfinished) {
  const TempDir folder;
  std::filesystem::create_directories(folder.path() / "sky");
  const auto path = folder.path() / "sky" / "metrics.jsonl";
  std::ofstream(path) << "{\"whole\":1}\n{\"unfin";
  Trackers("sky", {.log_with = {"jsonl"}, .logging_dir = folder.path()});
  std::istringstream lines(read_file(path));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "{\"whole\":1}");
  std::getline(lines, line);
  EXPECT_THAT(line, HasSubstr("\"event\":\"start\""));
}

TEST(EventFile, ChecksumsAreThoseOfTheFormat) {
  // CRC-32C of "123456789" is 0xe3069283 (RFC 3720, B.4); masked by hand.
  const auto record = record_of("123456789");
  ASSERT_EQ(record.size(), 8U + 4 + 9 + 4);
  const uint32_t crc = 0xe3069283;
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(
        static_cast<uint8_t>(record[21 + i]),
        static_cast<uint8_t>(masked >> 8 * i));
  }
}

} // namespace
} // namespace accelerate
