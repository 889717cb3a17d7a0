// SPDX-License-Identifier: Apache-2.0
#include "watch/run_reader.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "base/str.h"
#include "support/temp_dir.h"
#include "watch/run_list.h"
#include "watch/snapshot.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

void append(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::app) << text;
}

std::string value_line(int64_t step, double value) {
  return str_cat(
      R"({"time":)",
      1000 + step,
      R"(,"step":)",
      step,
      R"(,"values":{"loss":)",
      value,
      "}}\n");
}

std::string rank_line(double time, double forward, double communication) {
  return str_cat(
      R"({"time":)",
      time,
      R"(,"step":10,"values":{"steps":10,"forward":)",
      forward,
      R"(,"communication":)",
      communication,
      R"(,"memory":1000,"cpu":1}})",
      '\n');
}

const std::string kStart =
    R"({"time":1000,"event":"start","num_processes":2,"attempt":0})"
    "\n";

std::vector<int64_t> steps_of(const RunReader& run) {
  std::vector<int64_t> steps;
  const auto& metrics = run.content().metrics;
  if (const auto found = metrics.find("loss"); found != metrics.end()) {
    for (const auto& point : found->second.values.points()) {
      steps.push_back(point.last_step);
    }
  }
  return steps;
}

TEST(RunReader, TakesWhatHasComeAndWaitsForTheEndOfALine) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  RunReader run(dir.path());
  run.refresh();
  EXPECT_TRUE(run.content().metrics.empty());

  append(file, kStart + value_line(1, 0.5) + R"({"time":1002,"st)");
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(1));
  append(file, R"(ep":2,"values":{"loss":0.25}})");
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(1));
  append(file, "\n");
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(1, 2));
}

TEST(RunReader, SkipsWhatItDoesNotUnderstand) {
  const TempDir dir;
  std::string bad = "no json\n[]\n{}\n\n{\"time\":\"x\",\"step\":1}\n";
  bad += "{\"time\":1,\"step\":\"x\",\"values\":{\"loss\":1}}\n";
  bad += "{\"time\":1,\"step\":1,\"values\":[1]}\n";
  bad += "{\"time\":1e300,\"step\":1e300,\"values\":{\"loss\":1}}\n";
  bad += "{\"time\":1,\"event\":{},\"step\":-1e300}\n";
  bad += "{\"time\":1,\"event\":\"configuration\",\"values\":7}\n";
  bad += std::string("{\"time\":1,\"event\":\"\xff\"}\n") + '\0' + '\n';
  bad += std::string(100'000, '[') + '\n';
  // Longer than any line may be.
  bad += "{\"time\":1,\"event\":\"" + std::string(3 << 20, 'x') + "\"}\n";
  append(dir.path() / "metrics.jsonl", kStart + bad + value_line(3, 1));
  append(dir.path() / "ranks" / "rank_0.jsonl", bad);
  append(dir.path() / "ranks" / "rank_99999999999.jsonl", rank_line(1, 1, 1));
  append(dir.path() / "ranks" / "rank_-1.jsonl", rank_line(1, 1, 1));
  RunReader run(dir.path());
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(3));
  EXPECT_NO_THROW(snapshot(run, 2000).dump());
  EXPECT_LE(run.content().ranks.size(), 1U);
}

TEST(RunReader, StepsThatComeAgainCountOnce) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  append(file, kStart);
  for (int step = 0; step < 6; ++step) {
    append(file, value_line(step, 1));
  }
  append(file, kStart + R"({"time":1010,"event":"resume","step":3})" + "\n");
  append(file, value_line(3, 2));
  RunReader run(dir.path());
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(0, 1, 2, 3));
  // A start that goes on from nothing.
  append(file, kStart + value_line(0, 5));
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(0));
  EXPECT_EQ(run.content().metrics.at("loss").values.points()[0].sum, 5);
}

TEST(RunReader, ThinnedPointsHaveNothingThatComesAgain) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  constexpr int kSteps = 4 * static_cast<int>(Metric::kMaxPoints);
  std::string lines = kStart;
  for (int step = 0; step < kSteps; ++step) {
    lines += value_line(step, 1);
  }
  constexpr int kResumed = kSteps / 2 + 1; // Inside of a point.
  lines += kStart +
           str_cat(R"({"time":1010,"event":"resume","step":)", kResumed, "}\n");
  lines += value_line(kResumed, 7);
  append(file, lines);
  RunReader run(dir.path());
  run.refresh();
  const auto& points = run.content().metrics.at("loss").values.points();
  EXPECT_EQ(points.back().first_step, kResumed);
  EXPECT_EQ(points.back().low, 7);
  EXPECT_LT(points[points.size() - 2].last_step, kResumed);
}

TEST(RunReader, TheFirstValueThatIsNoNumberIsNamed) {
  const TempDir dir;
  const auto line = [](int step, const char* value) {
    return str_cat(
        R"({"time":1001,"step":)",
        step,
        R"(,"values":{"loss":)",
        value,
        "}}\n");
  };
  append(
      dir.path() / "metrics.jsonl",
      kStart + line(0, "1") + line(1, R"("Infinity")") + line(2, R"("NaN")"));
  RunReader run(dir.path());
  run.refresh();
  const auto shown = snapshot(run, 1002);
  EXPECT_EQ(shown["metrics"][0]["bad"]["value"], "Infinity");
  EXPECT_EQ(shown["metrics"][0]["bad"]["step"], 1);
  EXPECT_EQ(shown["metrics"][0]["step"].size(), 1U);
  EXPECT_EQ(shown["step"], 2);
}

TEST(RunReader, AFolderThatAnotherRunTakesIsReadAnew) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  append(file, kStart + value_line(1, 1) + value_line(2, 1));
  RunReader run(dir.path());
  run.refresh();
  append(dir.path() / "new", kStart + value_line(7, 1) + value_line(8, 1));
  fs::rename(dir.path() / "new", file);
  run.refresh();
  EXPECT_THAT(steps_of(run), ElementsAre(7, 8));
  fs::resize_file(file, 0);
  run.refresh();
  EXPECT_TRUE(steps_of(run).empty());
  fs::remove(file);
  run.refresh();
  EXPECT_TRUE(steps_of(run).empty());
}

TEST(RunReader, LongSeriesKeepTheirPeaksInAFewPoints) {
  const TempDir dir;
  std::string lines = kStart;
  constexpr int kSteps = 20'000;
  for (int step = 0; step < kSteps; ++step) {
    lines += value_line(step, step == 12'345 ? 99 : step == 777 ? -7 : 1);
  }
  append(dir.path() / "metrics.jsonl", lines);
  RunReader run(dir.path());
  run.refresh();
  const auto& points = run.content().metrics.at("loss").values.points();
  EXPECT_LE(points.size(), Metric::kMaxPoints);
  EXPECT_GE(points.size(), Metric::kMaxPoints / 2);
  double low = 0, high = 0, sum = 0;
  int64_t count = 0;
  for (const auto& point : points) {
    low = std::min(low, point.low);
    high = std::max(high, point.high);
    sum += point.sum;
    count += point.count;
  }
  EXPECT_EQ(low, -7);
  EXPECT_EQ(high, 99);
  EXPECT_EQ(count, kSteps);
  EXPECT_EQ(sum, kSteps - 2 + 99 - 7);
  EXPECT_EQ(points.back().last_step, kSteps - 1);
}

TEST(RunReader, LongFilesAreTakenInByParts) {
  const TempDir folder;
  // Long lines: many would take minutes with sanitizers.
  std::string line = value_line(1, 0.5);
  line.insert(line.size() - 1, 4000, ' ');
  std::string lines;
  while (lines.size() < RunReader::kBytesPerRefresh * 5 / 2) {
    lines += line;
  }
  append(folder.path() / kMetricsFile, lines + value_line(2, 0.5));
  RunReader run(folder.path());
  run.refresh();
  EXPECT_EQ(snapshot(run, 2000).at("state"), "reading");
  EXPECT_EQ(run.content().step, 1);
  run.refresh();
  EXPECT_TRUE(run.content().is_behind);
  run.refresh();
  EXPECT_EQ(run.content().step, 2);
  EXPECT_NE(snapshot(run, 2000).at("state"), "reading");
}

TEST(RunReader, ReadsNeitherLinksNorPipes) {
  const TempDir dir;
  const TempDir other;
  append(other.path() / "secret.jsonl", value_line(1, 1));
  fs::create_directories(dir.path() / "ranks");
  fs::create_symlink(
      other.path() / "secret.jsonl", dir.path() / "metrics.jsonl");
  ASSERT_EQ(mkfifo((dir.path() / "ranks" / "rank_0.jsonl").c_str(), 0600), 0);
  const auto logs = dir.path() / "logs" / "run_1" / "attempt_0" / "rank_0";
  fs::create_directories(logs);
  fs::create_symlink(other.path() / "secret.jsonl", logs / "stdout.log");
  append(logs / "stderr.log", "trouble\n");
  RunReader run(dir.path());
  run.refresh();
  EXPECT_TRUE(run.content().metrics.empty());
  ASSERT_EQ(run.logs().size(), 1U);
  EXPECT_EQ(run.logs()[0].stream, "stderr");
}

TEST(RunReader, LogsAreThoseOfTheLatestLaunchAndItsLastAttempt) {
  const TempDir dir;
  for (const char* folder :
       {"logs/run_2025/attempt_0",
        "logs/run_2026/attempt_0",
        "logs/run_2026/attempt_10",
        "logs/run_2026/attempt_9"}) {
    for (const char* rank : {"rank_10", "rank_2"}) {
      append(dir.path() / folder / rank / "stdout.log", folder);
    }
  }
  fs::create_directory_symlink("run_2025", dir.path() / "logs" / "run_9999");
  const auto logs = find_logs(dir.path());
  ASSERT_EQ(logs.size(), 2U);
  EXPECT_EQ(logs[0].rank, 2);
  EXPECT_EQ(logs[1].rank, 10);
  EXPECT_EQ(logs[0].attempt, 10);
  EXPECT_THAT(logs[0].path.string(), HasSubstr("run_2026"));
}

TEST(RunReader, TheRankThatOthersWaitForIsNamed) {
  const TempDir dir;
  append(dir.path() / "metrics.jsonl", kStart);
  const auto start = R"({"time":1000,"event":"start","host":"node3"})";
  for (int rank = 0; rank < 4; ++rank) {
    const auto file = dir.path() / "ranks" / str_cat("rank_", rank, ".jsonl");
    append(file, str_cat(start, '\n'));
    for (int second = 1; second < 20; ++second) {
      append(
          file,
          rank == 2 ? rank_line(1000 + second, 0.9, 0.1)
                    : rank_line(1000 + second, 0.5, 0.5));
    }
  }
  RunReader run(dir.path());
  run.refresh();
  // The latest start has two ranks: the others are of an earlier one.
  EXPECT_FALSE(find_slow_rank(run.content()));
  append(
      dir.path() / "metrics.jsonl",
      R"({"time":1001,"event":"start","num_processes":4})"
      "\n");
  run.refresh();
  const auto slow = find_slow_rank(run.content());
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 2);
  EXPECT_EQ(slow->part, "forward");
  EXPECT_NEAR(slow->own, 0.09, 1e-9);
  EXPECT_NEAR(slow->median, 0.05, 1e-9);

  const auto shown = snapshot(run, 1100);
  EXPECT_EQ(shown["slow"]["host"], "node3");
  EXPECT_EQ(shown["state"], "silent");
  EXPECT_EQ(snapshot(run, 1025)["state"], "running");
  EXPECT_EQ(shown["ranks"]["step_time"]["lines"].size(), 4U);
  // Steps are 100 ms long: forward and communication of ten in a second.
  EXPECT_EQ(
      shown["ranks"]["step_time"]["lines"][2]["values"][3].get<double>(), 0.1);
  EXPECT_EQ(shown["ranks"]["parts"]["forward"][3].get<double>(), 0.06);
  EXPECT_EQ(shown["ranks"]["throughput"]["lines"][0]["values"][3], 10);
}

TEST(RunReader, ManyRanksAreAMedianAndASpread) {
  const TempDir dir;
  append(
      dir.path() / "metrics.jsonl",
      R"({"time":1000,"event":"start","num_processes":64})"
      "\n");
  for (int rank = 0; rank < 64; ++rank) {
    const auto file = dir.path() / "ranks" / str_cat("rank_", rank, ".jsonl");
    append(
        file,
        R"({"time":1000,"event":"start"})"
        "\n");
    for (int second = 1; second < 2000; second += 10) {
      append(file, rank_line(1000 + second, 1 + rank, 0));
    }
  }
  RunReader run(dir.path());
  run.refresh();
  const auto shown = snapshot(run, 3000);
  const auto& spread = shown["ranks"]["step_time"];
  ASSERT_TRUE(spread.contains("median"));
  EXPECT_LE(spread["median"].size(), 240U);
  EXPECT_NEAR(spread["low"][5].get<double>(), 0.1, 1e-4);
  EXPECT_NEAR(spread["high"][5].get<double>(), 6.4, 1e-4);
  EXPECT_NEAR(spread["median"][5].get<double>(), 3.2, 1e-4);
  EXPECT_EQ(shown["slow"]["rank"], 63);
  EXPECT_NEAR(
      shown["ranks"]["own"]["slow"]["values"][5].get<double>(), 6.4, 1e-4);
  EXPECT_EQ(shown["table"].size(), 64U);
}

TEST(RunList, FindsRunsInAFolderAndNewOnes) {
  const TempDir dir;
  append(dir.path() / "<script>" / "metrics.jsonl", kStart);
  append(dir.path() / "notes" / "readme.txt", "x");
  RunList runs({dir.path()});
  EXPECT_EQ(runs.list()["runs"].size(), 1U);
  EXPECT_EQ(runs.list()["runs"][0]["name"], "<script>");
  append(dir.path() / "b" / "metrics.jsonl", kStart);
  EXPECT_EQ(runs.list()["runs"].size(), 2U);
  EXPECT_TRUE(runs.show(1, 2000));
  EXPECT_FALSE(runs.show(2, 2000));
  EXPECT_FALSE(runs.log_tail(0, 0));
}

TEST(RunList, SaysWhatIsNoRun) {
  const TempDir dir;
  const auto message_of = [](const fs::path& folder) -> std::string {
    try {
      RunList runs({folder});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message_of(dir.path() / "x"), HasSubstr("No such file"));
  append(dir.path() / "file", "x");
  EXPECT_THAT(message_of(dir.path() / "file"), HasSubstr("is a file"));
  // The same run twice is one.
  const auto run = dir.path() / "sky";
  append(run / "metrics.jsonl", kStart);
  EXPECT_EQ(RunList({run, dir.path()}).size(), 1U);
}

TEST(RunList, WaitsForTheFirstRunOfAFolder) {
  const TempDir dir;
  RunList runs({dir.path()});
  EXPECT_EQ(runs.size(), 0U);
  EXPECT_THAT(runs.empty(), ::testing::ElementsAre(dir.path()));
  EXPECT_EQ(runs.list()["runs"].size(), 0U);
  append(dir.path() / "sky" / "metrics.jsonl", kStart);
  EXPECT_EQ(runs.list()["runs"][0]["name"], "sky");
}

} // namespace
} // namespace accelerate
