// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/logger.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <sstream>
#include <thread>
#include <vector>

#include "accelerate/error.h"
#include "support/other_locale.h"

namespace accelerate {
namespace {

Logger logger_of(std::ostream& out, int rank, LogLevel level) {
  return Logger(
      "train",
      {.level = level,
       .topology = ProcessTopology{.rank = rank, .world_size = 2},
       .output = &out});
}

TEST(Logger, WritesOnTheMainProcessUnlessAllAreAsked) {
  std::ostringstream out;
  for (const int rank : {0, 1}) {
    const auto logger = logger_of(out, rank, LogLevel::kInfo);
    logger.info("loss ", 0.5, " after ", 3);
    logger.debug("too small");
    logger.on_every_process().error("all of us");
  }
  EXPECT_EQ(
      out.str(),
      "[RANK 0] INFO train: loss 0.5 after 3\n"
      "[RANK 0] ERROR train: all of us\n"
      "[RANK 1] ERROR train: all of us\n");
}

TEST(Logger, NoValueForgesALineOrMovesTheCursor) {
  std::ostringstream out;
  const Logger logger("a\nb", {.topology = ProcessTopology{}, .output = &out});
  logger.info("x\x1b[2J\n[RANK 0] ERROR y");
  logger.info("");
  logger.info("end\n");
  EXPECT_EQ(
      out.str(),
      "[RANK 0] INFO a\\x0ab: x\\x1b[2J\n"
      "    [RANK 0] ERROR y\n"
      "[RANK 0] INFO a\\x0ab: \n"
      "[RANK 0] INFO a\\x0ab: end\n\n");
}

TEST(Logger, WarnsOnce) {
  std::ostringstream out;
  const auto logger = logger_of(out, 0, LogLevel::kWarning);
  for (int i = 0; i < 3; ++i) {
    logger.warning_once("slow ", i % 2);
  }
  logger_of(out, 0, LogLevel::kError).warning_once("never");
  EXPECT_EQ(
      out.str(),
      "[RANK 0] WARNING train: slow 0\n[RANK 0] WARNING train: slow 1\n");
}

/// Two ranks in one thread: each waits only for itself.
struct Turns {
  int rank = 0;
  std::vector<int>* waits = nullptr;
  int num_processes() const { return 3; }
  int process_index() const { return rank; }
  void wait_for_everyone() { waits->push_back(rank); }
};

TEST(Logger, RanksWriteInOrder) {
  std::ostringstream out;
  std::vector<int> waits;
  Turns turns{.rank = 1, .waits = &waits};
  logger_of(out, 1, LogLevel::kInfo).in_order(turns, "mine");
  EXPECT_EQ(out.str(), "[RANK 1] INFO train: mine\n");
  EXPECT_EQ(waits.size(), 3U);
}

TEST(Logger, TakesItsLevelFromTheVariable) {
  setenv("ACCELERATE_LOG_LEVEL", "error", 1);
  EXPECT_EQ(Logger("a").level(), LogLevel::kError);
  EXPECT_EQ(Logger("a", {.level = LogLevel::kDebug}).level(), LogLevel::kDebug);
  {
    const testing::OtherLocale other;
    setenv("ACCELERATE_LOG_LEVEL", "critical", 1);
    EXPECT_EQ(Logger("a").level(), LogLevel::kCritical);
  }
  setenv("ACCELERATE_LOG_LEVEL", "loud", 1);
  EXPECT_THROW(Logger("a"), ConfigError);
  unsetenv("ACCELERATE_LOG_LEVEL");
  EXPECT_EQ(Logger("a").level(), LogLevel::kInfo);
}

TEST(Logger, LinesOfSeveralThreadsStayWhole) {
  std::ostringstream out;
  const auto logger = logger_of(out, 0, LogLevel::kInfo);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        logger.info("a line");
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  std::istringstream lines(out.str());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line, "[RANK 0] INFO train: a line");
  }
  EXPECT_EQ(count, 200);
}

} // namespace
} // namespace accelerate
