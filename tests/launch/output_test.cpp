// SPDX-License-Identifier: Apache-2.0
// What the user sees and what the log files contain.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/launch/machines/diagnosis.h"
#include "launcher/launch/supervise/bar_thinner.h"
#include "launcher/launch/supervise/error_report.h"
#include "launcher/launch/supervise/own_folder.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::vector<std::string> launch_printing(
    std::vector<std::string> flags,
    const std::string& script) {
  std::vector<std::string> command = {kProgram, "launch"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"sh", "-c", script});
  return command;
}

/// Runs a command on a pseudo-terminal and returns its output.
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
  const auto result = run_process(launch_printing(
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
      launch_printing({"--num_processes", "2"}, "printf 'no end %s' $RANK"));
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("no end 0\n"), HasSubstr("[rank 1] no end 1\n")));
}

TEST(Output, GoesToOneFilePerRankStreamAndAttempt) {
  TempDir folder;
  const auto result = run_process(launch_printing(
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
          folder.path() / "latest" / attempt / (std::string("rank_") + rank);
      EXPECT_EQ(
          read_file(rank_folder / "stdout.log"),
          std::string("out ") + rank + "\n");
      EXPECT_EQ(
          read_file(rank_folder / "stderr.log"),
          std::string("err ") + rank + "\n");
    }
  }
}

TEST(Output, GoesToAFolderPerRunAndTheNewestIsLinked) {
  TempDir folder;
  for (const char* word : {"one", "two"}) {
    run_process(launch_printing(
        {"--num_processes", "2", "--log_dir", folder.path()},
        std::string("echo ") + word));
    EXPECT_EQ(
        read_file(folder.path() / "latest/attempt_0/rank_1/stdout.log"),
        std::string(word) + "\n");
  }
  int num_runs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename();
    num_runs += name.starts_with("run_");
    EXPECT_TRUE(name.starts_with("run_") || name == "latest") << name;
  }
  EXPECT_EQ(num_runs, 2);
}

TEST(Output, IsChosenByLocalRank) {
  TempDir folder;
  const auto teed = run_process(launch_printing(
      {"--num_processes", "3", "--log_dir", folder.path(), "--tee", "0:3,1:2"},
      "echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(teed.out, "out 0\n");
  EXPECT_THAT(
      teed.err,
      AllOf(HasSubstr("err 0"), HasSubstr("err 1"), Not(HasSubstr("err 2"))));
  const auto filtered = run_process(launch_printing(
      {"--num_processes", "3", "--local_ranks_filter", "1,2"}, "echo $RANK"));
  EXPECT_THAT(
      filtered.out,
      AllOf(HasSubstr("[rank 1] 1\n"), HasSubstr("[rank 2] 2\n")));
  EXPECT_THAT(filtered.out, Not(HasSubstr("0")));
  const auto wrong = run_process(launch_printing({"--tee", "0:3,x"}, "true"));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("e.g. 0:3,1:2"));
}

TEST(Output, CarriesTheTimeWhenAskedTo) {
  TempDir folder;
  const auto result = run_process(launch_printing(
      {"--num_processes", "2", "--timestamps", "--log_dir", folder.path()},
      "echo hello; sleep 0.1; [ $RANK = 0 ] || exit 4; exec sleep 61"));
  const std::string time =
      "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3} ";
  EXPECT_TRUE(
      std::regex_search(result.out, std::regex(time + "\\[rank 1\\] hello\n")))
      << result.out;
  EXPECT_TRUE(
      std::regex_search(result.err, std::regex(time + "\\[launch\\] Rank ")))
      << result.err;
  EXPECT_TRUE(std::regex_match(
      read_file(folder.path() / "latest/attempt_0/rank_1/stdout.log"),
      std::regex(time + "hello\n")));
}

TEST(Output, RotatesFullLogFiles) {
  TempDir folder;
  const auto result = run_process(launch_printing(
      {"--num_processes",
       "2",
       "--log_dir",
       folder.path(),
       "--log_max_mb",
       "1",
       "--tee",
       "0"},
      "[ $RANK = 0 ] || seq 1000000 1450000"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto log = folder.path() / "latest/attempt_0/rank_1/stdout.log";
  std::string all;
  for (const char* part : {".3", ".2", ".1", ""}) {
    const auto text = read_file(log.string() + part);
    EXPECT_TRUE(text.empty() || text.ends_with('\n')) << part;
    all += text;
  }
  // 450,001 lines of 8 bytes: three full files and a rest, in order.
  EXPECT_EQ(all.size(), 450001U * 8);
  EXPECT_TRUE(all.starts_with("1000000\n"));
  EXPECT_TRUE(all.ends_with("\n1450000\n"));
}

TEST(Output, GoesToNewLogFilesIfTheOldAreDeleted) {
  TempDir folder;
  const auto logs = folder.path() / "logs";
  Subprocess job(launch_printing(
      {"--num_processes", "2", "--log_dir", logs, "--tee", "0"},
      "echo before; while [ ! -e " + folder.path().string() +
          "/go ]; do sleep 0.05; done; echo after; echo again"));
  const auto log = [&](int rank) {
    for (const auto& run : std::filesystem::directory_iterator(logs)) {
      if (run.is_directory() && !run.is_symlink()) {
        return read_file(
            run.path() / "attempt_0" / str_cat("rank_", rank) / "stdout.log");
      }
    }
    return std::string();
  };
  ASSERT_TRUE(eventually(
      [&] {
        return std::filesystem::exists(logs / "latest") &&
               log(0) == "before\n" && log(1) == "before\n";
      },
      kLimit));
  std::filesystem::remove_all(logs);
  folder.write("go", "");
  EXPECT_EQ(job.wait(kLimit).exit_code, 0) << job.err();
  EXPECT_EQ(log(0), "after\nagain\n");
  EXPECT_EQ(log(1), "after\nagain\n");
  for (const char* rank : {"rank_0", "rank_1"}) {
    EXPECT_THAT(
        job.err(),
        HasSubstr(
            str_cat(rank, "/stdout.log was deleted; writing a new file")));
  }
}

TEST(Failure, IsExplainedByTheWorkersErrorFile) {
  TempDir folder;
  const auto result = run_process(launch_printing(
      {"--num_processes", "2", "--log_dir", folder.path()},
      "[ $RANK = 1 ] || exec sleep 61; echo '{\"message\": {\"message\": "
      "\"ValueError: no such thing\", \"extraInfo\": {}}}' > "
      "$TORCHELASTIC_ERROR_FILE; exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(
      result.err,
      HasSubstr("exit code 3; its error file says: ValueError: no such thing"));
}

int count(const std::string& text, const std::string& part) {
  int number = 0;
  for (size_t at = text.find(part); at != text.npos;
       at = text.find(part, at + 1)) {
    ++number;
  }
  return number;
}

std::string printed(std::string text) {
  return "printf '" + text + "' >&2; exit 1";
}

constexpr const char* kTraceback =
    "[rank1]: Traceback (most recent call last):\\n"
    "[rank1]:   File \"train.py\", line 10, in <module>\\n"
    "[rank1]:     main()\\n"
    "[rank1]:   File \"/x/site-packages/torch/a.py\", line 1, in call\\n"
    "[rank1]:     return b()\\n"
    "[rank1]:            ^^^\\n"
    "[rank1]:   File \"/x/site-packages/accelerate/b.py\", line 2, in b\\n"
    "[rank1]:     raise\\n"
    "[rank1]: ValueError: bad batch\\n";
constexpr const char* kFolded =
    "[launch] Rank 1 failed with exit code 1:\n"
    "Traceback (most recent call last):\n"
    "  File \"train.py\", line 10, in <module>\n"
    "    main()\n"
    "  ... 2 frames in torch, accelerate\n"
    "ValueError: bad batch\n";

std::string rank_1_raises(const std::string& rank_0) {
  return "if [ $RANK = 1 ]; then " + printed(kTraceback) + "; fi; " + rank_0;
}

TEST(Failure, ShowsTheTracebackOnceLastAndFolded) {
  const auto result = run_process(launch_printing(
      {"--num_processes", "2"}, rank_1_raises("exec sleep 61")));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, kFolded);
}

TEST(Failure, ShowsTheTracebackOnceOnATerminal) {
  const auto shown = run_on_terminal(launch_printing(
      {"--num_processes", "2"},
      "if [ $RANK = 1 ]; then exec sleep 61; fi; printf '\\r 50%%' >&2; " +
          printed("Traceback (most recent call last):\\nValueError: bad\\n")));
  EXPECT_EQ(count(shown, "ValueError: bad"), 1) << shown;
  EXPECT_EQ(count(shown, "50%"), 1) << shown;
  EXPECT_THAT(shown, HasSubstr("[launch] Rank 0 failed with exit code 1:"));
}

TEST(Failure, BlamesTheCauseAndNotTheRankThatLostConnection) {
  // Rank 0 ends first, but only reports that another rank is gone.
  TempDir folder;
  const std::string gone = folder.path() / "gone";
  const auto result = run_process(launch_printing(
      {"--num_processes", "2"},
      "if [ $RANK = 0 ]; then trap 'touch " + gone + "' EXIT; " +
          printed("Traceback (most recent call last):\\n"
                  "accelerate.CommError: Another rank exited\\n") +
          "; fi; while [ ! -e " + gone + " ]; do sleep 0.05; done; " +
          printed(kTraceback)));
  EXPECT_EQ(result.err, kFolded);
}

TEST(Failure, ShowsOtherErrorsOfOtherRanks) {
  TempDir folder;
  const std::string ready = folder.path() / "ready";
  const auto result = run_process(launch_printing(
      {"--num_processes", "2"},
      "if [ $RANK = 0 ]; then "
      "printf 'Traceback (most recent call last):\\nKeyError: 3\\n' >&2; "
      "touch " +
          ready +
          "; sleep 61; fi; "
          "while [ ! -e " +
          ready + " ]; do sleep 0.05; done; " + printed(kTraceback)));
  EXPECT_EQ(
      result.err,
      std::string("Traceback (most recent call last):\nKeyError: 3\n") +
          kFolded);
}

TEST(Failure, ShowsTheSameErrorOfAllRanksOnce) {
  const auto result = run_process(launch_printing(
      {"--num_processes", "4"},
      printed("Traceback (most recent call last):\\n"
              "ModuleNotFoundError: No module\\n")));
  EXPECT_EQ(count(result.err, "ModuleNotFoundError"), 1) << result.err;
}

TEST(Failure, ShowsEverythingWithDebug) {
  const auto result = run_process(launch_printing(
      {"--num_processes", "2", "--debug"}, rank_1_raises("exec sleep 61")));
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("[rank 1]     return b()\n"),
          Not(HasSubstr("frames in")),
          HasSubstr("[launch] Rank 1 failed with exit code 1 (see above): "
                    "ValueError: bad batch\n")));
}

TEST(Failure, LeavesTheWholeTracebackInTheLogs) {
  TempDir folder;
  const auto result = run_process(launch_printing(
      {"--num_processes", "2", "--log_dir", folder.path()},
      rank_1_raises("exec sleep 61")));
  EXPECT_EQ(result.err, kFolded);
  std::ifstream log(
      folder.path() / "latest" / "attempt_0" / "rank_1" / "stderr.log");
  std::stringstream text;
  text << log.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("return b()\n"));
}

TEST(Failure, ShowsATracebackThatEndsNothing) {
  const auto result = run_process(launch_printing(
      {"--num_processes", "2"},
      "if [ $RANK = 1 ]; then printf 'Traceback (most recent call "
      "last):\\nKeyError: 3\\nretrying\\n' >&2; fi"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(
      result.err,
      "[rank 1] Traceback (most recent call last):\n[rank 1] KeyError: 3\n"
      "[rank 1] retrying\n");
}

TEST(Failure, ShowsATracebackBeforeWhatItsWorkerPrintsLater) {
  auto command = launch_printing(
      {"--num_processes", "2"},
      "[ $RANK = 1 ] || exit 0; printf 'Traceback (most recent call "
      "last):\\nKeyError: 3\\n' >&2; sleep 2.5; echo retrying");
  // One stream, so that the order is known.
  command.insert(command.begin(), {"sh", "-c", "exec \"$@\" 2>&1", "sh"});
  const auto result = run_process(command);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(
      result.out,
      "[rank 1] Traceback (most recent call last):\n[rank 1] KeyError: 3\n"
      "[rank 1] retrying\n");
}

TEST(Failure, OfACppProgramShowsWhat) {
  const auto result = run_process(launch_printing(
      {"--num_processes", "2"},
      "[ $RANK = 1 ] || exec sleep 61; printf 'terminate called after throwing "
      "an instance of std::runtime_error\\n  what():  bad batch\\n' >&2; "
      "kill -ABRT $$"));
  EXPECT_EQ(
      result.err,
      "[launch] Rank 1 aborted (SIGABRT):\n"
      "terminate called after throwing an instance of std::runtime_error\n"
      "  what():  bad batch\n");
}

TEST(Failure, OfACtrlCIsOneLine) {
  TempDir folder;
  const std::string here = folder.path() / "$RANK";
  Subprocess job(launch_printing(
      {"--num_processes", "2"},
      "trap 'printf \"Traceback (most recent call last):\\nKeyboardInterrupt"
      "\\n\" >&2; exit 130' INT; touch " +
          here + "; while true; do sleep 0.1; done"));
  ASSERT_TRUE(eventually(
      [&] {
        return std::filesystem::exists(folder.path() / "0") &&
               std::filesystem::exists(folder.path() / "1");
      },
      kLimit));
  job.send(SIGINT);
  EXPECT_EQ(job.wait().exit_code, 130);
  EXPECT_EQ(job.err(), "[launch] Interrupted; stopped 2 processes.\n");
}

TEST(ErrorReports, KeepFramesOfAProgramThatHasNoOthers) {
  const std::vector<std::string> words = {
      "Traceback (most recent call last):",
      "  File \"/usr/lib/python3.11/runpy.py\", line 1, in run",
      "    run()",
      "ImportError: x"};
  EXPECT_EQ(fold_library_frames(words), words);
  EXPECT_EQ(final_error(words), "ImportError: x");
}

TEST(ErrorReports, NeverFoldTheUsersOwnLines) {
  const auto folded = fold_library_frames(
      {"Traceback (most recent call last):",
       "  File \"<frozen runpy>\", line 1, in run",
       "  File \"/home/me/accelerate/train.py\", line 1, in run",
       "    f(",
       "  File \"/build/python/accelerate/a.py\", line 2, in g",
       "    h()",
       "",
       "The above exception was the direct cause of the following exception:",
       "  File \"/home/me/torch/x.py\", line 3",
       "    1 +",
       "SyntaxError: invalid syntax"},
      "/build/python/accelerate/");
  EXPECT_THAT(
      folded,
      ::testing::ElementsAre(
          "Traceback (most recent call last):",
          "  ... 1 frame in python",
          "  File \"/home/me/accelerate/train.py\", line 1, in run",
          "    f(",
          "  ... 1 frame in accelerate",
          "",
          "The above exception was the direct cause of the following "
          "exception:",
          "  File \"/home/me/torch/x.py\", line 3",
          "    1 +",
          "SyntaxError: invalid syntax"));
}

TEST(Bar, InAFileIsALineEveryFewSeconds) {
  BarThinner thinner;
  const auto start = BarThinner::Clock::now();
  std::string file = thinner.feed("begin\n", start);
  for (int second = 0; second <= 12; ++second) {
    file += thinner.feed(
        str_cat("\r", second, "/12"), start + std::chrono::seconds(second));
  }
  file += thinner.feed("\nend", start + 12s);
  file += thinner.finish();
  EXPECT_EQ(file, "begin\n4/12\n9/12\n12/12\nend");
}

TEST(Bar, LeavesOtherTextAlone) {
  BarThinner thinner;
  std::string file = thinner.feed("a\r");
  file += thinner.feed("\nb\n\nc\tprompt: ");
  file += thinner.finish();
  EXPECT_EQ(file, "a\r\nb\n\nc\tprompt: ");
}

TEST(Bar, IsNotOneLineOfALogFile) {
  TempDir folder;
  const auto result = run_process(launch_printing(
      {"--num_processes", "2", "--log_dir", folder.path(), "--tee", "3"},
      "printf 'begin\\r1/3\\r2/3\\r3/3\\nend' >&2"));
  std::string of_rank_1;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    of_rank_1 += line.starts_with("[rank 1] ") ? line + "\n" : "";
  }
  EXPECT_EQ(of_rank_1, "[rank 1] begin\n[rank 1] 3/3\n[rank 1] end\n");
  std::ifstream log(
      folder.path() / "latest" / "attempt_0" / "rank_1" / "stderr.log");
  std::stringstream text;
  text << log.rdbuf();
  EXPECT_EQ(text.str(), "begin\n3/3\nend");
}

TEST(Failure, IsReportedWhateverTheErrorFileIs) {
  TempDir folder;
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "--log_dir",
       folder.path(),
       "sh",
       "-c",
       "mkfifo $TORCHELASTIC_ERROR_FILE; exit 3"},
      {},
      20s);
  EXPECT_EQ(result.exit_code, 3) << result.err;
}

TEST(Output, IsATerminalForASingleProcess) {
  const std::string shown = run_on_terminal(launch_printing(
      {}, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size; exit 3"));
  EXPECT_THAT(shown, HasSubstr("24 97"));
}

TEST(Output, IsATerminalForTheFirstOfSeveralAndOthersAppearAboveItsBar) {
  const std::string shown = run_on_terminal(launch_printing(
      {"--num_processes", "2"},
      "if [ $RANK = 0 ]; then [ -t 1 ] && [ -t 2 ] && echo first sees a "
      "terminal; stty size <&1; printf '\\rbar 10%%'; sleep 1; "
      "printf '\\rbar 99%%\\n'; else sleep 0.4; [ -t 1 ] || echo line of "
      "another; fi"));
  EXPECT_THAT(shown, HasSubstr("first sees a terminal"));
  EXPECT_THAT(shown, HasSubstr("24 97"));
  // The bar is erased, the line written, the bar drawn again.
  EXPECT_THAT(
      shown,
      HasSubstr(
          "\rbar 10%\r\x1b[K\x1b[33m[rank 1]\x1b[0m line of another\r\nbar "
          "10%\rbar 99%"));
}

TEST(Output, HasNoColoursUnlessOnATerminal) {
  const auto result =
      run_process(launch_printing({"--num_processes", "2"}, "echo hello"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
}

TEST(Output, OfTheLauncherIsSilentWhenAskedTo) {
  const auto result = run_process(launch_printing({"-q"}, "exit 5"));
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

/// A launch that belongs to another program, which keeps its end of stdin open
/// until the launch is over.
std::string launch_for_parent(
    const TempDir& folder,
    const std::string& script) {
  const std::string path = folder.path();
  folder.write("accelerate_parent", "");
  return "mkfifo " + path + "/in; exec 9<>" + path + "/in; exec " + kProgram +
         " launch --parent_folder " + path + " --num_processes 2 sh -c '" +
         script + "' <&9";
}

TEST(Parent, SeesTheFirstWorkersBarBeforeItsLineEnds) {
  TempDir folder;
  const std::string path = folder.path();
  const auto wait_for = [&](const char* name) {
    return "while [ ! -e " + path + name + " ]; do sleep 0.02; done; ";
  };
  Subprocess launch(
      {"sh",
       "-c",
       launch_for_parent(
           folder,
           "if [ $RANK = 0 ]; then printf \"\\rbar 10%%\"; " +
               wait_for("/last") + "printf \"\\rbar 99%%\\n\"; else " +
               wait_for("/other") + "echo another; fi")});
  EXPECT_TRUE(eventually([&] { return launch.out() == "\rbar 10%"; }));
  std::ofstream(folder.path() / "other") << "now";
  EXPECT_TRUE(eventually(
      [&] { return launch.out() == "\rbar 10%\n[rank 1] another\n"; }));
  std::ofstream(folder.path() / "last") << "now";
  const auto result = launch.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "\rbar 10%\n[rank 1] another\n\rbar 99%\n");
}

TEST(Parent, SeesNoEmptyLineIfALineWasCutAtItsEnd) {
  TempDir folder;
  const std::string path = folder.path();
  const auto result = run_process(
      {"sh",
       "-c",
       launch_for_parent(
           folder,
           "if [ $RANK = 0 ]; then printf text; sleep 0.5; touch " + path +
               "/other; sleep 0.5; echo; else while [ ! -e " + path +
               "/other ]; do sleep 0.02; done; echo another; fi")});
  EXPECT_EQ(result.out, "text\n[rank 1] another\n") << result.err;
}

TEST(Parent, SeesNoMoreThanALineThatCameInTwoParts) {
  TempDir folder;
  const auto result = run_process(
      {"sh",
       "-c",
       launch_for_parent(
           folder, "[ $RANK = 1 ] || { printf te; echo xt; sleep 0.3; }")});
  EXPECT_EQ(result.out, "text\n") << result.err;
}

TEST(Parent, SeesABarOfAnyLengthOnOneLine) {
  TempDir folder;
  const auto result = run_process(
      {"sh",
       "-c",
       launch_for_parent(
           folder,
           "[ $RANK = 1 ] || { i=0; while [ $i -lt 30 ]; do "
           "printf \"\\r%01000d\" $i; sleep 0.07; i=$((i+1)); done; echo; }")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\r'), 30);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
}

TEST(Parent, SeesSeparateLinesOfOthersWhateverTheFirstDraws) {
  for (const char* drawn : {"%05000d", "%050d\\r"}) {
    TempDir folder;
    const std::string path = folder.path();
    const auto result = run_process(
        {"sh",
         "-c",
         launch_for_parent(
             folder,
             std::string("if [ $RANK = 0 ]; then printf \"") + drawn +
                 "\" 7; sleep 0.5; touch " + path +
                 "/other; sleep 0.5; else while [ ! -e " + path +
                 "/other ]; do sleep 0.02; done; echo another; fi")});
    EXPECT_THAT(result.out, HasSubstr("\n[rank 1] another\n"));
  }
}

TEST(Parent, ReadsHowTheJobEndedFromAFile) {
  TempDir folder;
  const auto result = run_process(
      {"sh",
       "-c",
       launch_for_parent(
           folder, "[ $RANK = 0 ] && sleep 60; echo why >&2; exit 7")});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.err, "[rank 1] why\n");
  EXPECT_THAT(
      read_file(folder.path() / "ending"),
      HasSubstr("[launch] Rank 1 failed with exit code 7"));
}

TEST(Parent, EndsTheJob) {
  TempDir folder;
  folder.write("accelerate_parent", "");
  const auto result = run_process(
      {"sh",
       "-c",
       ": | " + kProgram + " launch --parent_folder " + folder.path().string() +
           " --num_processes 2 sleep 600; echo code $?"});
  EXPECT_EQ(result.out, "code 137\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path()));
}

TEST(Logs, FollowNoLinkOfAnotherUser) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can make a link of another user";
  }
  TempDir folder;
  const auto target = folder.path() / "target";
  const auto link = folder.path() / "logs";
  std::filesystem::create_directory(target);
  std::filesystem::create_directory_symlink(target, link);
  constexpr uid_t kAnother = 12345;
  ASSERT_EQ(lchown(link.c_str(), kAnother, kAnother), 0);
  const auto result = run_process(
      {kProgram, "launch", "--num_processes", "2", "--log_dir", link, "true"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("is a link owned by another user"));
  EXPECT_TRUE(std::filesystem::is_empty(target));
  ASSERT_EQ(lchown(link.c_str(), 0, 0), 0);
  EXPECT_EQ(
      run_process({kProgram,
                   "launch",
                   "--num_processes",
                   "2",
                   "--log_dir",
                   link,
                   "true"})
          .exit_code,
      0);
  EXPECT_FALSE(std::filesystem::is_empty(target));
}

// A folder that is not marked belongs to someone else.
TEST(Logs, FollowNoLinkCreatedMeanwhile) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can make a link of another user";
  }
  TempDir folder;
  const auto target = folder.path() / "target";
  const std::string logs = folder.path() / "logs";
  const std::string link = folder.path() / "link";
  std::filesystem::create_directory(target);
  std::filesystem::create_directory(logs);
  std::filesystem::create_directory_symlink(target, link);
  constexpr uid_t kAnother = 12345;
  ASSERT_EQ(lchown(link.c_str(), kAnother, kAnother), 0);
  std::atomic<bool> is_over = false;
  std::thread swapper([&] {
    while (!is_over) {
      renameat2(
          AT_FDCWD, logs.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
    }
  });
  int num_made = 0;
  int num_refused = 0;
  const auto try_once = [&] {
    try {
      open_own_folder(logs + "/run_" + std::to_string(num_made));
      ++num_made;
    } catch (const SystemError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is a link owned by another user"));
      ++num_refused;
    }
  };
  EXPECT_TRUE(eventually(
      [&] {
        for (int i = 0; i < 100; ++i) {
          try_once();
        }
        return num_made >= 500 && num_refused >= 500;
      },
      60s));
  is_over = true;
  swapper.join();
  EXPECT_TRUE(std::filesystem::is_empty(target));
}

TEST(Parent, LosesNothingThatItHasNotMarked) {
  TempDir folder;
  const auto precious = folder.write("thesis", "");
  TempDir marked;
  marked.write("accelerate_parent", "");
  const auto link = folder.path() / "link";
  std::filesystem::create_directory_symlink(marked.path(), link);
  for (const auto& given : {folder.path(), link}) {
    const auto result = run_process(
        {"sh",
         "-c",
         ": | " + kProgram + " launch --parent_folder " + given.string() +
             " --num_processes 2 true"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("is not a folder of this user that"));
  }
  EXPECT_TRUE(std::filesystem::exists(precious));
  EXPECT_TRUE(std::filesystem::exists(marked.path()));
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

TEST(Commands, LaunchSaysThatChosenGpusAreMissing) {
  // Tests see no GPU.
  const auto chosen =
      run_process({kProgram, "launch", "--gpu_ids", "0,1", "true"});
  EXPECT_EQ(chosen.exit_code, 0) << chosen.err;
  EXPECT_THAT(
      chosen.err,
      HasSubstr("[launch] gpu_ids is 0,1, but this machine has no usable GPU"));
  const auto cpu =
      run_process({kProgram, "launch", "--cpu", "--gpu_ids", "0,1", "true"});
  EXPECT_EQ(cpu.err, "");
  const auto all =
      run_process({kProgram, "launch", "--gpu_ids", "all", "true"});
  EXPECT_EQ(all.err, "");
}

TEST(Commands, DoctorNamesLibrariesThatAreNotFound) {
  TempDir folder;
  const std::string program = folder.path() / "needy";
  const auto made = run_process(
      {"sh",
       "-c",
       "cd " + folder.path().string() +
           " && echo 'int lost() { return 0; }' > lost.c && "
           "echo 'int lost(); int main() { return lost(); }' > needy.c && "
           "/usr/bin/cc -shared -fPIC -o liblost.so lost.c && "
           "/usr/bin/cc -o needy needy.c -L. -llost"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto finding = check_libraries(program);
  EXPECT_EQ(finding.result, CheckResult::kFailed);
  EXPECT_EQ(finding.what, program + " cannot find liblost.so");
  EXPECT_EQ(check_libraries(kProgram).result, CheckResult::kPassed);
}

TEST(Commands, TestSaysWhenTheSelfCheckIsMissing) {
  if (std::filesystem::exists(
          std::string(TEST_BIN_DIR) + "/accelerate-selftest")) {
    GTEST_SKIP() << "the self-check is built here";
  }
  const auto result = run_process({kProgram, "test"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("accelerate-selftest is missing"));
}

} // namespace
} // namespace accelerate::testing
