// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/run_reader.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/watch/run_list.h"
#include "launcher/watch/snapshot.h"
#include "support/temp_dir.h"

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

TEST(RunReader, CountsLinesThatCannotBeRead) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  append(file, kStart + value_line(1, 0.5) + "\n");
  append(
      file,
      R"({"time":1,"event":"of a later version","x":[1]})"
      "\n");
  RunReader run(dir.path());
  run.refresh();
  EXPECT_EQ(run.content().num_damaged, 0);
  const auto version = run.version();
  append(file, R"({"time":1002,"step":2,"valu)" + std::string(2, '\0') + "\n");
  append(
      file,
      R"({"time":1003,"step":"x","values":{"loss":9}})"
      "\n");
  append(file, "[]\n" + value_line(4, 0.25));
  run.refresh();
  EXPECT_EQ(run.content().num_damaged, 3);
  EXPECT_GT(run.version(), version);
  EXPECT_EQ(snapshot(run, 2000)["num_damaged"], 3);
  EXPECT_THAT(steps_of(run), ElementsAre(1, 4));
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

TEST(RunReader, KeepsEveryValueThatIsNotFinite) {
  const TempDir dir;
  const auto line = [](int step, const std::string& value) {
    return str_cat(
        R"({"time":1001,"step":)",
        step,
        R"(,"values":{"loss":)",
        value,
        "}}\n");
  };
  const auto file = dir.path() / "metrics.jsonl";
  append(
      file,
      kStart + line(0, "1") + line(1, R"("Infinity")") + line(2, R"("NaN")"));
  RunReader run(dir.path());
  run.refresh();
  const auto few = snapshot(run, 1002)["metrics"][0];
  EXPECT_EQ(few["step"], nlohmann::json({0, 1, 2}));
  EXPECT_EQ(few["mean"], nlohmann::json({1, nullptr, nullptr}));
  EXPECT_EQ(
      few["bad"],
      nlohmann::json::array({{1, "Infinity", 1, 1}, {2, "NaN", 1, 2}}));
  EXPECT_EQ(few["last"], "NaN");

  // Thousands of values become hundreds of points, which still tell.
  std::string more;
  for (int step = 3; step < 5000; ++step) {
    more += line(step, step % 1000 == 0 ? R"("NaN")" : "2");
  }
  append(file, more);
  run.refresh();
  const auto many = snapshot(run, 1002)["metrics"][0];
  EXPECT_LE(many["step"].size(), Metric::kMaxPoints);
  EXPECT_EQ(many["bad"].size(), 2U + 4U);
  EXPECT_EQ(many["bad"].back()[3], 4000);
  int64_t num_finite = 0;
  for (const auto& number : many["count"]) {
    num_finite += number.get<int64_t>();
  }
  EXPECT_EQ(num_finite, 5000 - 6);
  EXPECT_EQ(many["last"], 2);
}

TEST(RunReader, ReadsARangeAgainWithEveryValue) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  std::string lines = kStart;
  for (int step = 0; step < 20'000; ++step) {
    lines += value_line(step, 0.25 * step);
  }
  append(file, lines);
  RunReader run(dir.path());
  run.refresh();
  const auto range = run.read_range({RunAxis::kStep, 7000, 7099});
  ASSERT_TRUE(range);
  const auto& points = range->at("loss").values.points();
  ASSERT_EQ(points.size(), 100U);
  EXPECT_EQ(points.front().first_step, 7000);
  EXPECT_EQ(points[42].sum, 0.25 * 7042);
  // Times are 1000 + step.
  const auto timed = run.read_range({RunAxis::kTime, 8000, 8009});
  EXPECT_EQ(timed->at("loss").values.points().front().first_step, 7000);

  // What a resume took back is not read again.
  append(
      file,
      kStart + R"({"time":30000,"event":"resume","step":7050})"
               "\n");
  append(file, value_line(7050, 1) + value_line(7051, 2));
  run.refresh();
  const auto resumed = run.read_range({RunAxis::kStep, 7000, 7099});
  ASSERT_EQ(resumed->at("loss").values.points().size(), 52U);
  EXPECT_EQ(resumed->at("loss").values.points()[50].sum, 1);
}

TEST(RunReader, WritesAllLoggedValuesAsCsv) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.jsonl";
  append(
      file,
      kStart +
          R"({"time":1000.5,"step":1,"values":)"
          R"({"a,\"b\"":0.10000000000000001,"x":"NaN"}})"
          "\n" +
          value_line(2, 9) +
          R"({"time":1003,"event":"resume","step":2})"
          "\n" +
          value_line(2, 3));
  RunReader run(dir.path());
  run.refresh();
  std::optional<off_t> offset = 0;
  // The first value of step 2 no longer counts.
  EXPECT_EQ(
      run.read_csv(offset),
      "1000.5,1,\"a,\"\"b\"\"\",0.1\n1000.5,1,x,NaN\n1002,2,loss,3\n");
  EXPECT_FALSE(offset);
}

TEST(RunReader, PiecesOfCsvAreTheWholeFile) {
  const TempDir dir;
  std::string lines = kStart;
  std::string expected;
  for (int step = 0; lines.size() < RunReader::kBytesPerPiece * 5 / 2; ++step) {
    lines += value_line(step, 0.5);
    expected += str_cat(1000 + step, ',', step, ",loss,0.5\n");
  }
  append(dir.path() / "metrics.jsonl", lines);
  RunReader run(dir.path());
  run.refresh();
  std::string text;
  int num_pieces = 0;
  for (std::optional<off_t> offset = 0; offset; ++num_pieces) {
    text += run.read_csv(offset);
  }
  EXPECT_EQ(num_pieces, 3);
  EXPECT_TRUE(text == expected);
}

TEST(RunReader, ReadsLinesAlikeWithAndWithoutTheJsonLibrary) {
  const auto of = [](std::string_view text, bool is_fast) {
    ValueLine line;
    EXPECT_EQ(line.parse_fast(text), is_fast) << text;
    if (!is_fast) {
      const auto object = parse_run_line(text);
      EXPECT_TRUE(object && line.take(*object)) << text;
    }
    std::string found = str_cat(line.time_text, ' ', line.step);
    for (const auto& value : line.values) {
      found += str_cat(' ', value.name, '=', value.text);
    }
    return found;
  };
  const std::string expected = "1.5 7 a=0.25 b=NaN c=-1e-05";
  EXPECT_EQ(
      of(R"({"time": 1.5, "step": 7, "values": {"a": 0.25, "b": "NaN",)"
         R"( "t": "text", "c": -1e-05}})",
         true),
      expected);
  // Another order, and an escape.
  EXPECT_EQ(
      of(R"({"step":7,"time":1.5,"values":)"
         R"({"a":0.25,"b":"NaN","c":-1e-05}})",
         false),
      expected);
  EXPECT_EQ(
      of(R"({"time":1.5,"step":7,"values":)"
         R"({"a":0.25,"b":"\u004eaN","c":-1e-05}})",
         false),
      expected);
}

TEST(RunReader, AnExitCountsUntilTheRunStartsAgain) {
  const TempDir dir;
  append(dir.path() / "metrics.jsonl", kStart + value_line(1, 1));
  append(
      dir.path() / kExitsFile,
      R"({"time":1005,"event":"exit","exit_code":1,"rank":1,)"
      R"("host":"node2","how":"failed with exit code 1",)"
      R"("error":"ValueError: bad batch"})"
      "\n");
  RunReader run(dir.path());
  run.refresh();
  const auto shown = snapshot(run, 1006);
  EXPECT_EQ(shown["state"], "failed");
  EXPECT_EQ(shown["exit"]["rank"], 1);
  EXPECT_EQ(shown["exit"]["error"], "ValueError: bad batch");
  EXPECT_EQ(shown["end"], 1005);
  append(
      dir.path() / "metrics.jsonl",
      R"({"time":1007,"event":"start","num_processes":2,"attempt":1})"
      "\n");
  run.refresh();
  EXPECT_EQ(snapshot(run, 1008)["state"], "running");
  append(
      dir.path() / kExitsFile,
      R"({"time":1009,"event":"exit","exit_code":130,"how":"Interrupted"})"
      "\n");
  run.refresh();
  EXPECT_EQ(snapshot(run, 1010)["state"], "interrupted");
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
  append(
      folder.path() / kMetricsFile,
      lines + value_line(2, 0.5) +
          R"({"time":1005,"event":"finish"})"
          "\n");
  RunReader run(folder.path());
  run.refresh();
  EXPECT_EQ(snapshot(run, 2000).at("is_behind"), true);
  EXPECT_EQ(run.content().step, 1);
  // The end of the file is known from the beginning.
  EXPECT_EQ(snapshot(run, 2000).at("state"), "finished");
  EXPECT_EQ(run.content().end, 1005);
  run.refresh();
  EXPECT_TRUE(run.content().is_behind);
  run.refresh();
  EXPECT_EQ(run.content().step, 2);
  EXPECT_EQ(snapshot(run, 2000).at("is_behind"), false);
  EXPECT_EQ(snapshot(run, 2000).at("state"), "finished");
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

TEST(RunReader, ARankIsSlowIfItsWorkTakesAFifthLonger) {
  // Seconds of work and of waiting for others in ten steps: two ranks, the
  // second one slower.
  const auto is_slow = [](double own, double waiting, double own_of_second) {
    const TempDir dir;
    for (int rank = 0; rank < 2; ++rank) {
      const auto file = dir.path() / "ranks" / str_cat("rank_", rank, ".jsonl");
      append(file, "{\"time\":1000,\"event\":\"start\"}\n");
      const double work = rank == 0 ? own : own_of_second;
      append(file, rank_line(1001, work, own + waiting - work));
    }
    RunReader run(dir.path());
    run.refresh();
    return find_slow_rank(run.content()).has_value();
  };
  EXPECT_TRUE(is_slow(0.5, 0.2, 0.62));
  EXPECT_FALSE(is_slow(0.5, 0.2, 0.58));
  // Nor if the work is a small part of a step.
  EXPECT_FALSE(is_slow(0.02, 0.5, 0.04));
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
  EXPECT_EQ(slow->phase, "forward");
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

TEST(RunList, ReadsTheRanksOfARangeAgain) {
  const TempDir dir;
  append(dir.path() / "metrics.jsonl", kStart);
  for (int rank = 0; rank < 2; ++rank) {
    std::string lines = R"({"time":1000,"event":"start"})"
                        "\n";
    for (int second = 1; second < 5000; ++second) {
      lines += rank_line(1000 + second, 1 + rank + second % 7, 1);
    }
    append(dir.path() / "ranks" / str_cat("rank_", rank, ".jsonl"), lines);
  }
  RunList runs({dir.path()});
  EXPECT_EQ((*runs.show(0, {}, 6000))["ranks"]["width"], 32);
  const auto ranks = (*runs.show_range(0, {RunAxis::kTime, 500, 519}))["ranks"];
  EXPECT_EQ(ranks["width"], 1);
  ASSERT_EQ(ranks["time"].size(), 20U);
  EXPECT_EQ(ranks["time"][0], 500.5);
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 20; ++i) {
      // A line describes the second before it, and ten steps.
      EXPECT_NEAR(
          ranks["own"]["lines"][rank]["values"][i].get<double>(),
          0.1 * (1 + rank + (501 + i) % 7),
          1e-9);
      EXPECT_EQ(ranks["throughput"]["lines"][rank]["values"][i], 10);
    }
  }
  // Ranges need not be of the run, and those of steps have no times.
  EXPECT_TRUE(
      (*runs.show_range(0, {RunAxis::kTime, 9000, 9001}))["ranks"].is_null());
  EXPECT_EQ(
      (*runs.show_range(0, {RunAxis::kTime, -1e300, 1e300}))["ranks"]["width"],
      32);
  EXPECT_FALSE((*runs.show_range(0, {RunAxis::kStep, 1, 2})).contains("ranks"));
}

TEST(RunList, FindsRunsInAFolderAndNewOnes) {
  const TempDir dir;
  append(dir.path() / "<script>" / "metrics.jsonl", kStart);
  append(dir.path() / "notes" / "readme.txt", "x");
  RunList runs({dir.path()});
  EXPECT_EQ(runs.list(-1, 2000)["runs"].size(), 1U);
  EXPECT_EQ(runs.list(-1, 2000)["runs"][0]["name"], "<script>");
  append(dir.path() / "b" / "metrics.jsonl", kStart);
  EXPECT_EQ(runs.list(-1, 2000)["runs"].size(), 2U);
  EXPECT_TRUE(runs.show(1, {}, 2000));
  EXPECT_FALSE(runs.show(2, {}, 2000));
  EXPECT_FALSE(runs.log_tail(0, 0));
}

std::vector<std::string> names_of(RunList& runs) {
  std::vector<std::string> names;
  const auto list = runs.list(-1, 2000);
  for (const auto& run : list["runs"]) {
    names.push_back(run["name"]);
  }
  return names;
}

TEST(RunList, FindsRunsInSubfolders) {
  const TempDir dir;
  const auto& root = dir.path();
  for (const char* run :
       {"bert/seed_1",
        "bert/seed_1/checkpoints/old",
        "gpt2/seed_1",
        "gpt2/large/seed_2",
        "gpt2/large/deep/seed_3",
        ".git/seed_4"}) {
    append(root / run / "metrics.jsonl", kStart);
  }
  fs::create_directory_symlink(root / "bert", root / "link");
  RunList runs({root});
  EXPECT_THAT(
      names_of(runs),
      ElementsAre("bert/seed_1", "gpt2/large/seed_2", "gpt2/seed_1"));
}

TEST(RunList, RunsOfOneNameGetLongerNames) {
  const TempDir dir;
  const auto& root = dir.path();
  for (const char* run : {"one/same", "one/other", "two/same"}) {
    append(root / run / "metrics.jsonl", kStart);
  }
  RunList runs({root / "one", root / "two"});
  EXPECT_THAT(names_of(runs), ElementsAre("other", "one/same", "two/same"));
  RunList given({root / "one" / "same", root / "two" / "same"});
  EXPECT_THAT(names_of(given), ElementsAre("one/same", "two/same"));
  // Also if the second one starts later.
  fs::create_directory(root / "three");
  RunList later({root / "one", root / "three"});
  EXPECT_THAT(names_of(later), ElementsAre("other", "same"));
  append(root / "three" / "same" / "metrics.jsonl", kStart);
  EXPECT_THAT(names_of(later), ElementsAre("other", "one/same", "three/same"));
}

TEST(RunList, SaysThatARunWasDeleted) {
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    append(dir.path() / name / "metrics.jsonl", kStart + value_line(4, 0.5));
  }
  RunList runs({dir.path()});
  const auto first = runs.list(-1, 1010);
  fs::remove_all(dir.path() / "a");
  const auto second = runs.list(first["version"], 1011);
  EXPECT_EQ(second["runs"][0]["summary"]["state"], "deleted");
  EXPECT_FALSE(second["runs"][1].contains("summary"));
  EXPECT_EQ((*runs.show(0, {}, 1011))["state"], "deleted");
}

TEST(RunList, ShowsTheEndOfALongLog) {
  const TempDir dir;
  append(dir.path() / "metrics.jsonl", kStart);
  const auto log =
      dir.path() / "run_20260101-a" / "attempt_0" / "rank_0" / "stdout.log";
  std::string text;
  for (int i = 100'000; i < 120'000; ++i) {
    text += str_cat("line ", i, '\n');
  }
  append(log, text);
  RunList runs({dir.path()});
  runs.show(0, {}, 2000);
  const auto shown = runs.log_tail(0, 0);
  ASSERT_TRUE(shown);
  EXPECT_LE(shown->size(), RunList::kMaxLogTail);
  EXPECT_GT(shown->size(), RunList::kMaxLogTail - 12);
  EXPECT_TRUE(shown->starts_with("line "));
  EXPECT_TRUE(text.ends_with(*shown));
}

TEST(RunList, SendsOnlySummariesThatChanged) {
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    append(dir.path() / name / "metrics.jsonl", kStart + value_line(4, 0.5));
  }
  RunList runs({dir.path()});
  const auto first = runs.list(-1, 1010);
  EXPECT_EQ(first["runs"][0]["summary"]["metrics"][0]["last"], 0.5);
  EXPECT_EQ(first["runs"][1]["summary"]["state"], "running");
  const auto version = first["version"].get<int64_t>();
  const auto second = runs.list(version, 1011);
  EXPECT_FALSE(second["runs"][0].contains("summary"));
  append(dir.path() / "b" / "metrics.jsonl", value_line(5, 0.125));
  const auto third = runs.list(version, 1012);
  EXPECT_FALSE(third["runs"][0].contains("summary"));
  const auto& metric = third["runs"][1]["summary"]["metrics"][0];
  EXPECT_EQ(metric["last"], 0.125);
  EXPECT_EQ(metric["low"], 0.125);
  EXPECT_EQ(metric["low_step"], 5);
  EXPECT_EQ(metric["high_step"], 4);
}

TEST(RunList, NamesRunsThatItDoesNotList) {
  const TempDir dir;
  for (size_t i = 0; i < RunList::kMaxRuns + 2; ++i) {
    append(dir.path() / str_cat("run_", 10'000 + i) / "metrics.jsonl", "");
  }
  RunList runs({dir.path()});
  const auto list = runs.list(-1, 2000);
  EXPECT_EQ(list["runs"].size(), RunList::kMaxRuns);
  EXPECT_EQ(list["num_left_out"], 2);
  EXPECT_EQ(list["left_out"], nlohmann::json({"run_11000", "run_11001"}));
}

TEST(RunList, NamesFoldersWithoutARun) {
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
  EXPECT_EQ(runs.list(-1, 2000)["runs"].size(), 0U);
  append(dir.path() / "sky" / "metrics.jsonl", kStart);
  EXPECT_EQ(runs.list(-1, 2000)["runs"][0]["name"], "sky");
}

} // namespace
} // namespace accelerate
