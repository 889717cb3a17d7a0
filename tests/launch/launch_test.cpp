// SPDX-License-Identifier: Apache-2.0
// The program `accelerate launch` with real processes.
#include <gmock/gmock.h>
#include <signal.h>

#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

const std::string kProgram = std::string(TEST_BIN_DIR) + "/accelerate";

std::vector<std::string> launch_shell(
    int processes,
    const std::string& script) {
  return {
      kProgram,
      "launch",
      "--num_processes",
      std::to_string(processes),
      "sh",
      "-c",
      script};
}

// A zombie that nobody has reaped yet counts as gone.
bool is_alive(const std::string& pid) {
  const std::string status =
      read_file("/proc/" + pid.substr(0, pid.find('\n')) + "/status");
  return !status.empty() && status.find("State:\tZ") == std::string::npos;
}

TEST(Launch, StartsEveryRankAndForwardsItsOutput) {
  const auto result = run_process(
      launch_shell(3, "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line :
       {"rank 0 of 3 at 127.0.0.1", "rank 1 of 3", "rank 2 of 3"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(Launch, AcceptsDashesAndPassesTheProgramsOptionsOn) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num-processes",
       "1",
       "echo",
       "--num_processes",
       "--help"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "--num_processes --help\n");
}

TEST(Launch, ReturnsTheCodeOfTheFirstRankThatFailsAndEndsTheOthers) {
  const auto result = run_process(
      launch_shell(3, "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 60"));
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("ended with exit code 7"));
  EXPECT_LT(result.duration, 5s);
}

TEST(Launch, NamesTheSignalThatEndedARank) {
  const auto result = run_process(
      launch_shell(2, "if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 60"));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("rank 0"));
  EXPECT_THAT(result.err, HasSubstr("signal 9 (Killed)"));
  EXPECT_LT(result.duration, 5s);
}

TEST(Launch, SaysWhichRankHadLeftBeforeAnotherFailed) {
  const auto result = run_process(
      launch_shell(2, "if [ $RANK = 1 ]; then exit 0; fi; sleep 0.3; exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 1 had left before with exit code 0"));
}

TEST(Launch, KillsWorkersThatIgnoreTheRequestToEnd) {
  const auto result = run_process(launch_shell(
      2,
      "if [ $RANK = 1 ]; then exit 5; fi; trap '' TERM; sleep 60; sleep 60"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_LT(result.duration, 5s);
}

TEST(Launch, EndsWhatAWorkerStartedToo) {
  TempDir folder;
  const std::string file = folder.path() / "pid";
  const auto result =
      run_process(launch_shell(1, "sleep 60 & echo $! > " + file + "; exit 4"));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_TRUE(eventually([&] { return !is_alive(read_file(file)); }));
}

class LaunchInterrupted : public ::testing::TestWithParam<int> {};

TEST_P(LaunchInterrupted, EndsEveryWorkerAndReturnsTheSignal) {
  TempDir folder;
  Subprocess launcher(launch_shell(
      2, "echo $$ > " + folder.path().string() + "/$RANK; exec sleep 60"));
  const auto pid = [&](const char* rank) {
    return read_file(folder.path() / rank);
  };
  ASSERT_TRUE(
      eventually([&] { return !pid("0").empty() && !pid("1").empty(); }));
  launcher.send(GetParam());
  const auto result = launcher.wait(10s);
  EXPECT_EQ(result.exit_code, 128 + GetParam());
  EXPECT_TRUE(eventually([&] { return !is_alive(pid("0")); }, 5s));
  EXPECT_TRUE(eventually([&] { return !is_alive(pid("1")); }, 5s));
}

INSTANTIATE_TEST_SUITE_P(
    Signals,
    LaunchInterrupted,
    ::testing::Values(SIGINT, SIGTERM, SIGKILL));

TEST(LaunchErrors, GetOneLineAndExitCode2) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{kProgram, "launch"}, "no program"},
      {{kProgram, "launch", "--num_processes", "0", "true"}, "num_processes"},
      {{kProgram, "launch", "--num_processes", "two", "true"}, "num_processes"},
      {{kProgram, "launch", "--num_procs", "2", "true"}, "'--num_procs'"},
      {{kProgram, "launch", "./no_such_program"}, "'./no_such_program'"},
      {{kProgram, "lunch"}, "lunch"},
  };
  for (const auto& [command, part] : cases) {
    const auto result = run_process(command);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
  }
}

} // namespace
} // namespace accelerate::testing
