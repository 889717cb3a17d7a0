// SPDX-License-Identifier: Apache-2.0
// What ranks write, and what is read of it.
#include "core/tracking/rank_journal.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/tracking/run_origin.h"
#include "launcher/watch/run_reader.h"
#include "support/temp_dir.h"

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
    data += point.phases[0];
    forward += point.phases[1];
    EXPECT_GT(point.memory, 1e6);
    EXPECT_EQ(point.device_memory, 77);
    busy += point.device_busy;
  }
  EXPECT_NEAR(busy, 3 * 0.25, 1e-9); // Asked once for each line.
  EXPECT_EQ(num_steps, 10);
  EXPECT_NEAR(data, 1, 1e-9);
  EXPECT_NEAR(forward, 2, 1e-9);
}

TEST(RankJournal, RankZeroSaysWhatStartedTheRun) {
  const TempDir dir;
  const RankJournal journal(
      dir.path(), {.device = "cuda:0", .versions = {{"torch", "2.11.0"}}}, {});
  RunReader run(dir.path());
  run.refresh();
  EXPECT_EQ(run.content().ranks.at(0).device, "cuda:0");
  const std::map<std::string, std::string> origin(
      run.content().origin.begin(), run.content().origin.end());
  EXPECT_THAT(origin.at("command"), HasSubstr("watch_test"));
  EXPECT_EQ(origin.at("directory"), fs::current_path().string());
  EXPECT_EQ(origin.at("torch"), "2.11.0");
  EXPECT_EQ(origin.count("accelerate"), 1U);
}

TEST(RunOrigin, SecretsAreMasked) {
  EXPECT_EQ(
      masked_command({"train.py", "--hub_token", "abc", "--lr", "0.1"}),
      "train.py --hub_token *** --lr 0.1");
  EXPECT_EQ(
      masked_command({"--api-key=abc", "WANDB_API_KEY=x", "db.password=y"}),
      "--api-key=*** WANDB_API_KEY=*** db.password=***");
  EXPECT_EQ(
      masked_command(
          {"--url", "https://me:pass@host/x", "hf_abcdefghijklmnopqrst"}),
      "--url https://me:***@host/x ***");
  // None of these is a secret.
  EXPECT_EQ(
      masked_command(
          {"--max_tokens", "512", "--tokenizer=gpt2", "--key", "it's"}),
      R"(--max_tokens 512 --tokenizer=gpt2 --key 'it'\''s')");
  EXPECT_EQ(masked_command({"--token", "--fast", "x"}), "--token --fast x");
}

TEST(RunOrigin, FindsTheCommit) {
  const TempDir dir;
  const std::string commit(40, 'a');
  const std::string other(40, 'b');
  const auto write = [&](const char* path, const std::string& text) {
    fs::create_directories((dir.path() / path).parent_path());
    std::ofstream(dir.path() / path) << text;
  };
  fs::create_directories(dir.path() / "src" / "deep");
  EXPECT_EQ(git_commit(dir.path() / "src"), "");
  write(".git/HEAD", "ref: refs/heads/main\n");
  write(".git/packed-refs", "# pack-refs\n" + other + " refs/heads/main\n");
  EXPECT_EQ(git_commit(dir.path() / "src" / "deep"), other);
  write(".git/refs/heads/main", commit + "\n");
  EXPECT_EQ(git_commit(dir.path() / "src" / "deep"), commit);
  write(".git/HEAD", other + "\n");
  EXPECT_EQ(git_commit(dir.path()), other);
  // A work tree.
  write("tree/.git", "gitdir: ../.git/worktrees/tree\n");
  write(".git/worktrees/tree/HEAD", "ref: refs/heads/main\n");
  write(".git/worktrees/tree/commondir", "../..\n");
  EXPECT_EQ(git_commit(dir.path() / "tree"), commit);
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

TEST(RankJournal, AFullDiskIsReportedOnceAndEndsNothing) {
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
