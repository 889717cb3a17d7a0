// SPDX-License-Identifier: Apache-2.0
// What the user sees and what the log files hold.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <regex>
#include <sstream>

#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

const std::string kProgram = std::string(TEST_BIN_DIR) + "/accelerate";

std::vector<std::string> launch_shell(
    std::vector<std::string> flags,
    const std::string& script) {
  std::vector<std::string> command = {kProgram, "launch"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"sh", "-c", script});
  return command;
}

/// Runs a command on a pseudo-terminal and returns all that it showed.
std::string run_on_terminal(std::vector<std::string> command) {
  int screen = -1;
  winsize size{.ws_row = 24, .ws_col = 97, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t pid = forkpty(&screen, nullptr, nullptr, &size);
  if (pid == 0) {
    std::vector<char*> arguments;
    for (auto& text : command) {
      arguments.push_back(text.data());
    }
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  std::string shown;
  char buffer[4096];
  pollfd waited{screen, POLLIN, 0};
  while (poll(&waited, 1, 15000) > 0) {
    const auto got = read(screen, buffer, sizeof(buffer));
    if (got <= 0) {
      break;
    }
    shown.append(buffer, static_cast<size_t>(got));
  }
  close(screen);
  waitpid(pid, nullptr, 0);
  return shown;
}

TEST(Output, NeverMixesTwoRanksInOneLine) {
  const auto result = run_process(launch_shell(
      {"--num_processes", "3"},
      "i=0; while [ $i -lt 200 ]; do printf $RANK$RANK; printf $RANK$RANK; "
      "echo $RANK; i=$((i+1)); done"));
  EXPECT_EQ(result.exit_code, 0);
  std::istringstream lines(result.out);
  int count = 0;
  const std::regex whole("00000|\\[rank 1\\] 11111|\\[rank 2\\] 22222");
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(std::regex_match(line, whole)) << line;
  }
  EXPECT_EQ(count, 600);
}

TEST(Output, KeepsALastLineWithoutItsEnd) {
  const auto result = run_process(
      launch_shell({"--num_processes", "2"}, "printf 'no end %s' $RANK"));
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("no end 0\n"), HasSubstr("[rank 1] no end 1\n")));
}

TEST(Output, GoesToOneFilePerRankStreamAndAttempt) {
  TempDir folder;
  const auto result = run_process(launch_shell(
      {"--num_processes",
       "2",
       "--max_restarts",
       "1",
       "--log_dir",
       folder.path(),
       "--tee",
       "2"},
      "echo out $RANK; echo err $RANK >&2; "
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { sleep 0.3; exit 1; }"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("err 0"), HasSubstr("err 1")));
  for (const char* attempt : {"attempt_0", "attempt_1"}) {
    for (const char* rank : {"0", "1"}) {
      const auto rank_folder =
          folder.path() / attempt / (std::string("rank_") + rank);
      EXPECT_EQ(
          read_file(rank_folder / "stdout.log"),
          std::string("out ") + rank + "\n");
      EXPECT_EQ(
          read_file(rank_folder / "stderr.log"),
          std::string("err ") + rank + "\n");
    }
  }
}

TEST(Output, IsATerminalForASingleProcess) {
  const std::string shown = run_on_terminal(launch_shell(
      {}, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size; exit 3"));
  EXPECT_THAT(shown, HasSubstr("24 97"));
}

TEST(Output, IsATerminalForTheFirstOfSeveralAndOthersAppearAboveItsBar) {
  const std::string shown = run_on_terminal(launch_shell(
      {"--num_processes", "2"},
      "if [ $RANK = 0 ]; then [ -t 1 ] && [ -t 2 ] && echo first sees a "
      "terminal; stty size <&1; printf '\\rbar 10%%'; sleep 1; "
      "printf '\\rbar 99%%\\n'; else sleep 0.4; [ -t 1 ] || echo line of "
      "another; fi"));
  EXPECT_THAT(shown, HasSubstr("first sees a terminal"));
  EXPECT_THAT(shown, HasSubstr("24 97"));
  // The bar is wiped, the line written, the bar drawn again.
  EXPECT_THAT(
      shown,
      HasSubstr(
          "\rbar 10%\r\x1b[K\x1b[33m[rank 1]\x1b[0m line of another\r\nbar "
          "10%\rbar 99%"));
}

TEST(Output, HasNoColoursWhereItIsNoTerminal) {
  const auto result =
      run_process(launch_shell({"--num_processes", "2"}, "echo hello"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
}

TEST(Output, OfTheLauncherIsSilentWhenAskedTo) {
  const auto result = run_process(launch_shell({"-q"}, "exit 5"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.err, "");
}

TEST(Input, GoesToTheFirstWorkerOnly) {
  const auto result = run_process(
      {"sh",
       "-c",
       "echo typed | " + kProgram +
           " launch --num_processes 2 sh -c 'echo $RANK got $(cat)'"});
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("0 got typed\n"), HasSubstr("[rank 1] 1 got\n")));
}

TEST(Commands, EnvPrintsWhatABugReportNeedsWithoutTheToken) {
  const auto result =
      run_process({kProgram, "env"}, {{"ACCELERATE_JOB_TOKEN", "open sesame"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"- accelerate: ",
        "- platform: Linux",
        "- memory: ",
        "- Python: ",
        "ACCELERATE_JOB_TOKEN=(hidden)",
        "- configuration: "}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("sesame")));
}

TEST(Commands, DoctorNamesWhatIsWrongAndTheRemedy) {
  const auto good = run_process({kProgram, "doctor", "--cpu"});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  EXPECT_THAT(good.out, HasSubstr("ok  training on the CPU"));
  const auto bad = run_process(
      {kProgram,
       "doctor",
       "--num_machines",
       "2",
       "--machine_rank",
       "1",
       "--main_process_ip",
       "no.such.host.invalid"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(
      bad.out,
      HasSubstr("BAD name no.such.host.invalid has no address: correct it"));
}

TEST(Commands, TestSaysWhenTheSelfCheckIsMissing) {
  if (std::filesystem::exists(
          std::string(TEST_BIN_DIR) + "/accelerate-selftest")) {
    GTEST_SKIP() << "the self-check is built here";
  }
  const auto result = run_process({kProgram, "test"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("accelerate-selftest is not there"));
}

} // namespace
} // namespace accelerate::testing
