// SPDX-License-Identifier: Apache-2.0
// What ranks write, and what is read of it.
#include "tracking/rank_journal.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "support/temp_dir.h"
#include "watch/run_reader.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TempDir;

/// Steps of 300 ms.
StepTimes steps(int64_t number) {
  const auto count = static_cast<double>(number);
  return {
      .num_steps = number,
      .sum = {.data = 0.1 * count, .forward = 0.2 * count}};
}

int64_t num_lines(const fs::path& path) {
  const auto text = read_file(path);
  return std::count(text.begin(), text.end(), '\n');
}

TEST(RankJournal, WritesALineASecond) {
  const TempDir dir;
  RankJournal journal(
      dir.path(),
      {.rank = 3,
       .num_processes = 4,
       .attempt = 1,
       .device_memory = [] { return 77; },
       .device_busy = [busy = 0.0]() mutable { return busy += 0.25; }},
      steps(5));
  auto now = RankJournal::Clock::now();
  for (int step = 6; step <= 15; ++step) {
    now += std::chrono::milliseconds(300);
    if (journal.is_due(now)) {
      journal.write(steps(step), now);
    }
  }
  const auto file = dir.path() / "ranks" / "rank_3.jsonl";
  EXPECT_EQ(num_lines(file), 3); // The start, and two of four steps each.
  journal.finish(steps(15));
  journal.write(steps(99), now);
  EXPECT_EQ(num_lines(file), 5);

  RunReader run(dir.path());
  run.refresh();
  const auto& rank = run.content().ranks.at(3);
  EXPECT_EQ(rank.step, 10);
  EXPECT_FALSE(rank.host.empty());
  double num_steps = 0;
  double forward = 0;
  double data = 0;
  double busy = 0;
  for (const auto& point : rank.points.points()) {
    num_steps += point.steps;
    data += point.parts[0];
    forward += point.parts[1];
    EXPECT_GT(point.memory, 1e6);
    EXPECT_EQ(point.device_memory, 77);
    busy += point.device_busy;
  }
  EXPECT_NEAR(busy, 3 * 0.25, 1e-9); // Asked once for each line.
  EXPECT_EQ(num_steps, 10);
  EXPECT_NEAR(data, 1, 1e-9);
  EXPECT_NEAR(forward, 2, 1e-9);
}

TEST(RankJournal, LongRunsWriteFewerLines) {
  const TempDir dir;
  RankJournal journal(dir.path(), {}, {});
  auto now = RankJournal::Clock::now();
  for (int second = 1; second <= 86'400; ++second) {
    now += std::chrono::seconds(1);
    if (journal.is_due(now)) {
      journal.write(steps(second), now);
    }
  }
  const auto file = dir.path() / "ranks" / "rank_0.jsonl";
  // 4000 lines, then as many for each factor e: 4000 (1 + ln 21.6).
  EXPECT_LT(num_lines(file), 17'000);
  EXPECT_GT(num_lines(file), 10'000);
  EXPECT_LT(fs::file_size(file), 4'000'000U);
}

TEST(RankJournal, AFullDiskIsToldOnceAndEndsNothing) {
  const TempDir dir;
  fs::create_directories(dir.path() / "ranks");
  fs::create_symlink("/dev/full", dir.path() / "ranks" / "rank_0.jsonl");
  ::testing::internal::CaptureStderr();
  RankJournal journal(dir.path(), {}, {});
  const auto now = RankJournal::Clock::now();
  journal.write(steps(1), now + std::chrono::seconds(2));
  EXPECT_FALSE(journal.is_due(now + std::chrono::hours(1)));
  journal.write(steps(2), now + std::chrono::seconds(4));
  journal.finish(steps(3));
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("No space left on device"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

} // namespace
} // namespace accelerate
