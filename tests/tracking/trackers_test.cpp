// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "accelerate/error.h"
#include "accelerate/observe/tracking.h"
#include "core/tracking/event_file.h"
#include "support/other_locale.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::read_file;
using ::testing::StartsWith;
using testing::TempDir;
using ::testing::ThrowsMessage;

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
    throw std::runtime_error(why);
  }
  void finish() override { throw 1; }

  std::string why = "no room";
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

TEST(Trackers, WriteNumbersWithAPointInEveryLocale) {
  const testing::OtherLocale other;
  const TempDir folder;
  {
    Trackers trackers(
        "sky", {.log_with = {"csv", "jsonl"}, .logging_dir = folder.path()});
    trackers.log({{"a", 1.5}}, 3);
  }
  EXPECT_THAT(
      read_file(folder.path() / "sky" / "metrics.csv"),
      ContainsRegex("\n[0-9]+[.][0-9]+,3,a,1[.]5\n"));
  EXPECT_THAT(
      read_file(folder.path() / "sky" / "metrics.jsonl"),
      HasSubstr("{\"a\":1.5}"));
}

TEST(Trackers, ResumeAtTheCheckpoint) {
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

TEST(Trackers, AFailureIsReportedOnceAndTheRunContinues) {
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

TEST(Trackers, RejectUnknownTrackersAndInvalidNames) {
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
  EXPECT_THROW(make({"jsonl"}, " "), UsageError);
  EXPECT_THAT(
      [&] { make({"jsonl"}, "a\n\x1b[2Jb"); },
      ThrowsMessage<UsageError>(HasSubstr("project name 'a\\x0a\\x1b[2Jb'")));
  EXPECT_THAT(
      [&] { make({"json\nl"}); },
      ThrowsMessage<UsageError>(HasSubstr("Unknown tracker 'json\\x0al'")));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Trackers, ThatWereNotStartedAreNotFinished) {
  const TempDir folder;
  auto own = std::make_shared<Remembering>("own");
  EXPECT_THROW(
      Trackers(
          "sky",
          {.log_with = {own, "tensorbord"}, .logging_dir = folder.path()}),
      UsageError);
  EXPECT_THAT(own->calls, IsEmpty());
}

TEST(Trackers, WriteNothingThatMovesTheCursor) {
  const TempDir folder;
  ::testing::internal::CaptureStderr();
  {
    auto own = std::make_shared<Failing>("a\nb");
    own->why = "\x1b[2Jgone\nfor good";
    Trackers trackers("sky", {.log_with = {own}, .logging_dir = folder.path()});
    trackers.log({{"a", 1}});
  }
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      StartsWith("[tracker a\\x0ab] log failed: \\x1b[2Jgone\\x0afor good. "));
}

TEST(Trackers, OfTwoRunsDoNotShareAFolder) {
  const TempDir folder;
  const auto make = [&](const std::string& project) {
    return Trackers(
        project, {.log_with = {"jsonl", "csv"}, .logging_dir = folder.path()});
  };
  auto first = make("sky");
  std::filesystem::create_directory_symlink("sky", folder.path() / "link");
  for (const char* project : {"sky", "link"}) {
    EXPECT_THAT(
        [&] { make(project); },
        ThrowsMessage<UsageError>(
            HasSubstr("of this process already writes to")));
  }
  const auto beside = make("sea");
  // A rejected folder is not claimed, and a folder is released by a move.
  auto moved = std::move(first);
  moved.finish();
  auto second = make("sky");
  const auto lines = read_file(folder.path() / "sky" / "metrics.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3) << lines;
}

TEST(Trackers, WarnOnceAboutLateValues) {
  const TempDir folder;
  auto own = std::make_shared<Remembering>("own");
  Trackers trackers("sky", {.log_with = {own}, .logging_dir = folder.path()});
  trackers.finish();
  ::testing::internal::CaptureStderr();
  trackers.log({{"lo\nss", 1}});
  trackers.log_images("pictures", {});
  trackers.log_histogram("weights", {});
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      said,
      StartsWith("[log] 'lo\\x0ass' and all later values are not logged"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_THAT(own->calls, ElementsAre("start sky", "finish"));
}

TEST(Trackers, TakeTheLastValueOfANameThatIsGivenTwice) {
  const TempDir folder;
  ::testing::internal::CaptureStderr();
  {
    Trackers trackers(
        "sky", {.log_with = {"jsonl"}, .logging_dir = folder.path()});
    trackers.log({{"a", 1}, {"b", 2}, {"a", 3}});
    trackers.log({{"b", 4}, {"b", 5}});
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, StartsWith("[log] 'a' was passed twice in one call"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  const auto lines = read_file(folder.path() / "sky" / "metrics.jsonl");
  EXPECT_THAT(lines, HasSubstr(R"("values":{"a":3,"b":2})"));
  EXPECT_THAT(lines, HasSubstr(R"("values":{"b":5})"));
}

TEST(Trackers, AreInactiveAfterAMove) {
  const TempDir folder;
  Trackers trackers(
      "sky",
      {.log_with = {std::make_shared<Remembering>("own")},
       .logging_dir = folder.path()});
  const auto moved = std::move(trackers);
  trackers.log({{"a", 1}}); // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(trackers.empty());
  EXPECT_FALSE(moved.empty());
}

TEST(Trackers, AreInactiveOnOtherProcesses) {
  Trackers nobody;
  EXPECT_TRUE(nobody.empty());
  nobody.log({{"a", 1}});
  nobody.get("tensorboard").log({{"a", 1}}, 1);
}

/// Limits the size of this process's files during its lifetime, like a full
/// disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t size) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{size, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

TEST(Trackers, AFullDiskLosesWholePiecesAndIsReportedOnce) {
  const TempDir folder;
  const auto run = folder.path() / "sky";
  // Not into a file, which is also limited.
  std::ostringstream captured;
  auto* const before = std::cerr.rdbuf(captured.rdbuf());
  {
    Trackers trackers(
        "sky",
        {.log_with = {"jsonl", "csv", "tensorboard"},
         .logging_dir = folder.path()});
    trackers.log({{"before", 1}});
    const auto jsonl = std::filesystem::file_size(run / "metrics.jsonl");
    {
      // In the middle of a line, a row and a record.
      const SmallFiles full(jsonl + 13);
      for (int i = 0; i < 100; ++i) {
        trackers.log({{"lost", std::string(100, 'x')}});
      }
    }
    trackers.log({{"after", 2}});
  }
  std::cerr.rdbuf(before);
  const auto said = captured.str();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << said;
  EXPECT_THAT(said, HasSubstr("cannot be written: File too large"));
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  std::vector<std::string> kept;
  for (std::string line; std::getline(lines, line);) {
    const auto fields = nlohmann::json::parse(line);
    kept.push_back(
        fields.contains("values") ? fields["values"].items().begin().key()
                                  : fields.at("event").get<std::string>());
  }
  EXPECT_THAT(kept, ElementsAre("start", "before", "after", "finish"));
  const auto rows = read_file(run / "metrics.csv");
  EXPECT_THAT(rows, HasSubstr("\n"));
  std::istringstream cells(rows);
  for (std::string row; std::getline(cells, row);) {
    EXPECT_EQ(std::count(row.begin(), row.end(), ','), 3) << row;
  }
  EXPECT_THAT(rows, HasSubstr(",after,2\n"));
  // Valid records up to the end of the file.
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    const auto bytes = read_file(entry.path());
    if (entry.path().filename().string().find("tfevents") ==
        std::string::npos) {
      continue;
    }
    size_t at = 0;
    while (at < bytes.size()) {
      uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, sizeof(size));
      const auto data = bytes.substr(at + 12, size);
      ASSERT_EQ(bytes.substr(at, size + 16), record_of(data)) << at;
      at += size + 16;
    }
    EXPECT_THAT(bytes, HasSubstr("after"));
  }
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
