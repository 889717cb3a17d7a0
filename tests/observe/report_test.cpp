// SPDX-License-Identifier: Apache-2.0
// Reports of hanging ranks, for constructed cases.
#include "core/observe/report.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "accelerate/error.h"
#include "support/subprocess.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RankReport waiting(int rank, const std::string& operation, uint64_t number) {
  RankReport report;
  report.rank = rank;
  report.world_size = 4;
  report.host = "node0";
  report.pid = 100 + rank;
  report.phase = StepPhase::kCommunication;
  report.waits = true;
  report.seconds = 10.24;
  report.operation = operation;
  report.number = number;
  report.stack.frames = {
      {"wait in libc", false}, {"train.cpp:31 in main", true}};
  return report;
}

RankReport elsewhere(int rank, StepPhase phase, double seconds) {
  auto report = waiting(rank, "", 2);
  report.phase = phase;
  report.waits = false;
  report.seconds = seconds;
  report.stack.frames = {
      {"spin.cpp:4 in spin", true},
      {"train.cpp:30 in main", true},
      {"start in libc", false}};
  return report;
}

TEST(Report, RoundTripsThroughTheStore) {
  const auto report = waiting(3, "all_reduce Float[4,2]", 17);
  const auto again = decode_report(encode(report));
  EXPECT_EQ(again.rank, 3);
  EXPECT_EQ(again.host, "node0");
  EXPECT_EQ(again.pid, 103);
  EXPECT_EQ(again.phase, StepPhase::kCommunication);
  EXPECT_TRUE(again.waits);
  EXPECT_DOUBLE_EQ(again.seconds, 10.24);
  EXPECT_EQ(again.operation, "all_reduce Float[4,2]");
  EXPECT_EQ(again.number, 17u);
  ASSERT_EQ(again.stack.frames.size(), 2u);
  EXPECT_EQ(again.stack.frames[1].text, "train.cpp:31 in main");
  EXPECT_TRUE(again.stack.frames[1].is_users);
}

TEST(Report, RejectsInvalidText) {
  for (const char* text :
       {"", "{}", "[]", "{\"rank\": \"x\"}", "\xff\xfe", "null"}) {
    EXPECT_THROW(decode_report(text), DataError) << text;
  }
  auto odd = encode(waiting(0, "a", 1));
  odd.replace(odd.find("\"part\":4"), 8, "\"part\":99");
  EXPECT_THROW(decode_report(odd), DataError);
}

TEST(Report, ContainsNoCodesThatMoveTheCursor) {
  const auto report = decode_report(encode(waiting(0, "a\x1b[2J", 1)));
  EXPECT_THAT(report.operation, Not(HasSubstr("\x1b")));
}

TEST(Hang, NamesWhoWaitsAndWhoIsElsewhereAndWhere) {
  const auto text = describe_hang(
      {waiting(0, "all_reduce Float[4]", 3),
       elsewhere(1, StepPhase::kUser, 12),
       waiting(2, "all_reduce Float[4]", 3),
       waiting(3, "all_reduce Float[4]", 3)},
      {},
      10);
  EXPECT_EQ(
      text,
      "[hang] Possible hang: ranks 0, 2, 3 have waited 10.2 s in "
      "all_reduce(Float[4]) for rank 1:\n"
      "  ranks 0, 2, 3: waiting in all_reduce(Float[4]), collective 3, for "
      "10.2 s\n"
      "      train.cpp:31 in main\n"
      "  rank 1: in user code; collective 2 was its last; no progress for 12 "
      "s\n"
      "      spin.cpp:4 in spin\n"
      "      train.cpp:30 in main");
}

TEST(Hang, ShowsWhereTheUsersCodeIsAndNotHowLibrariesWait) {
  auto report = waiting(0, "barrier", 3);
  report.stack.frames = {
      {"__poll in libc.so.6", false},
      {"wait in libtorch_cpu.so", false},
      {"train.cpp:31 in meet", true},
      {"call in libtorch_cpu.so", false},
      {"train.cpp:40 in main", true},
      {"start in libc.so.6", false}};
  const std::string places =
      "\n      train.cpp:31 in meet"
      "\n      call in libtorch_cpu.so"
      "\n      train.cpp:40 in main\n";
  EXPECT_EQ(
      describe_ranks({report}),
      "rank 0 of 4 (process 100): waiting in barrier(), collective 3, for 10.2 "
      "s" +
          places);
  EXPECT_THAT(describe_hang({report}, {{1, "", 0}}, 10), HasSubstr(places));
  // A library that waits for something other than ranks is named.
  report.waits = false;
  report.phase = StepPhase::kUser;
  report.operation = "";
  EXPECT_THAT(
      describe_ranks({report}),
      HasSubstr("\n      train.cpp:31 in meet (inside: __poll in libc.so.6)"
                "\n      call"));
  for (auto& frame : report.stack.frames) {
    frame.is_users = false;
  }
  EXPECT_THAT(
      describe_ranks({report}),
      AllOf(
          HasSubstr("\n      __poll in libc.so.6\n"),
          HasSubstr("\n      start in libc.so.6\n")));
}

TEST(Hang, IsReportedInOneSentence) {
  auto waits = waiting(0, "wait_for_everyone", 1);
  waits.seconds = 3;
  EXPECT_THAT(
      describe_hang({waits, elsewhere(1, StepPhase::kUser, 4)}, {}, 3),
      StartsWith("[hang] Possible hang: rank 0 has waited 3 s in "
                 "wait_for_everyone() for rank 1:\n"));
}

TEST(Hang, TellsAnotherShapeFromAnotherCollective) {
  const auto text = describe_hang(
      {waiting(0, "all_reduce Float[4]", 3),
       waiting(1, "all_reduce Float[4]", 3),
       waiting(2, "all_reduce Float[5]", 3),
       waiting(3, "barrier", 3)},
      {},
      10);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("rank 2: with a different shape in all_reduce(Float[5])"),
          HasSubstr("rank 3: elsewhere, waiting in barrier(), collective 3")));
}

TEST(Hang, UsesTheLowestRankOnATie) {
  // In the order in which they answered.
  EXPECT_THAT(
      describe_hang(
          {waiting(1, "barrier", 3), waiting(0, "all_reduce Float[4]", 3)},
          {},
          10),
      AllOf(
          HasSubstr("[hang] Possible hang: rank 0 has waited 10.2 s in "
                    "all_reduce(Float[4]) for rank 1:\n"),
          HasSubstr("rank 1: elsewhere, waiting in barrier()")));
}

TEST(Hang, TellsASlowRankFromAMissingOne) {
  EXPECT_THAT(
      describe_hang(
          {waiting(0, "barrier", 3), elsewhere(1, StepPhase::kForward, 0.3)},
          {},
          10),
      HasSubstr(
          "rank 1: in a forward pass; collective 2 was its last; slow, not "
          "missing: it last made progress 0.3 s ago"));
}

TEST(Hang, ShowsRanksApartThatCameToOnePlaceByDifferentLines) {
  std::vector<RankReport> reports = {
      waiting(0, "barrier", 3),
      elsewhere(1, StepPhase::kUser, 12),
      elsewhere(2, StepPhase::kUser, 12)};
  reports[2].stack.frames[1].text = "train.cpp:47 in main";
  EXPECT_THAT(
      describe_hang(reports, {}, 10),
      AllOf(
          ContainsRegex("rank 1: .*\n.*spin\n *train.cpp:30 in main"),
          ContainsRegex("rank 2: .*\n.*spin\n *train.cpp:47 in main")));
}

TEST(Hang, SaysHowLongTheFirstOfAlikeRanksWaits) {
  auto reports =
      std::vector{waiting(0, "barrier", 3), waiting(1, "barrier", 3)};
  reports[0].seconds = 14;
  EXPECT_THAT(
      describe_hang(reports, {{2, "", 0}}, 10),
      HasSubstr(
          "ranks 0, 1: waiting in barrier(), collective 3, for up to 14 s"));
}

TEST(Hang, OfASlowRankNeedNotStayTrue) {
  std::vector<RankReport> reports = {
      waiting(0, "barrier", 3), elsewhere(1, StepPhase::kUser, 9)};
  EXPECT_TRUE(names_slow_rank(reports, 10));
  EXPECT_FALSE(names_slow_rank(reports, 9));
  reports[1] = waiting(1, "all_gather", 3);
  reports[1].seconds = 1;
  EXPECT_FALSE(names_slow_rank(reports, 10));
}

TEST(Hang, NamesRanksThatAreSilent) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  testing::Subprocess stopped({"sleep", "60"});
  stopped.send(SIGSTOP);
  const std::string pid = std::to_string(stopped.pid());
  // A process that is starting may first wait for the disk.
  ASSERT_TRUE(testing::eventually(
      [&] { return why_silent(stopped.pid()).starts_with("it is stopped"); }));
  const auto text = describe_hang(
      {waiting(0, "barrier", 3)},
      {{1, host, stopped.pid()}, {2, "elsewhere", 7}, {3, "", 0}},
      10);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("rank 1: process " + pid),
          HasSubstr("it is stopped; continue it with kill -CONT " + pid),
          HasSubstr("rank 2: process 7 on elsewhere does not answer: it has "
                    "exited or is stopped, or its machine cannot be reached"),
          HasSubstr("rank 3: has not reported")));
  stopped.send(SIGKILL);
  ASSERT_TRUE(testing::eventually([&] {
    return why_silent(stopped.pid()).find("has exited") != std::string::npos;
  }));
}

TEST(Hang, OfAllRanksIsTheNetworks) {
  const std::vector<RankReport> reports = {
      waiting(0, "barrier", 3), waiting(1, "barrier", 3)};
  EXPECT_TRUE(is_hang(reports, {}, 10));
  EXPECT_FALSE(is_hang(reports, {}, 13));
  EXPECT_THAT(
      describe_hang(reports, {}, 10),
      HasSubstr("[hang] Possible hang: ranks 0, 1 have waited 10.2 s in "
                "barrier(); all ranks have arrived, so the network or a device "
                "does not respond, or a rank has skipped a step:\n"));
}

TEST(Hang, IsNoneWhileAllComputeInOneBackward) {
  std::vector<RankReport> reports = {
      waiting(0, "backward", 3), waiting(1, "backward", 3)};
  reports[0].phase = reports[1].phase = StepPhase::kBackward;
  EXPECT_FALSE(is_hang(reports, {}, 10));
  EXPECT_TRUE(is_hang(reports, {{2, "", 0}}, 10));
  reports[1] = elsewhere(1, StepPhase::kUser, 12);
  EXPECT_TRUE(is_hang(reports, {}, 10));
  EXPECT_FALSE(is_hang({elsewhere(0, StepPhase::kUser, 12)}, {}, 10));
}

TEST(Hang, SaysAThousandRanksInAFewLines) {
  std::vector<RankReport> reports;
  for (int rank = 0; rank < 1000; ++rank) {
    reports.push_back(
        rank == 412 ? elsewhere(rank, StepPhase::kData, 30)
                    : waiting(rank, "all_reduce Float[4]", 3));
  }
  const auto text = describe_hang(reports, {}, 10);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 8);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("ranks 0-411, 413-999: waiting"),
          HasSubstr("rank 412: waiting for data")));
}

} // namespace
} // namespace accelerate
