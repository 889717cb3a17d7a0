// SPDX-License-Identifier: Apache-2.0
// Failures of the environment: everything fails in bounded time and says why;
// no line is lost.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "support/cluster.h"
#include "support/program.h"
#include "support/subprocess.h"

#if defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1 // GCC's name for it.
#endif
#endif

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;

ProcessResult run_shell(
    const std::string& script,
    std::chrono::seconds limit = 60s) {
  return run_process({"bash", "-c", script}, {}, limit);
}

std::string launch(const std::string& arguments) {
  return kProgram + " launch " + arguments;
}

/// A program that writes `$1` numbered lines to both streams, by rank.
std::string lines_program(const TempDir& folder) {
  return folder.write(
      "lines.py",
      "import os, sys\n"
      "r = os.environ['RANK']\n"
      "for i in range(int(sys.argv[1])):\n"
      "    print(f'<{r} out {i} ' + 'x' * int(sys.argv[2]) + '>')\n"
      "    print(f'<{r} err {i} ' + 'x' * int(sys.argv[2]) + '>', "
      "file=sys.stderr)\n");
}

int count_lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST(Start, ThatFailsForWantOfFilesEndsAndSaysSo) {
  const auto result = run_shell(
      "ulimit -n 20; exec " + launch("--num_processes 16 /bin/sleep 33"), 30s);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
}

TEST(Start, NamesTheLimitOnFilesHoweverLowItIs) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "sanitizers open files of their own";
#endif
  for (int limit = 4; limit < 16; ++limit) {
    const auto result = run_shell(
        // Files of the process that runs the test.
        "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -n " +
            std::to_string(limit) + "; exec " +
            launch("--num_processes 2 true"),
        30s);
    EXPECT_EQ(result.exit_code, 2) << limit;
    EXPECT_THAT(
        result.err, HasSubstr("raise the limit on open files (ulimit -n)"));
  }
}

TEST(Start, NeedsNoMoreThanASmallStack) {
  const auto result =
      run_shell("ulimit -s 64; exec " + launch("--num_processes 2 echo hi"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_lines(result.out), 2);
}

TEST(Start, ThatFailsForWantOfProcessesEndsAndSaysSo) {
  if (getuid() != 0) {
    GTEST_SKIP() << "needs a user without other processes";
  }
  // A separate user, with room for the launcher and a few workers.
  const auto result = run_shell(
      "exec setpriv --reuid 54321 --clear-groups bash -c 'ulimit -u 6; exec " +
          launch("--cpu --num_processes 16 /bin/sleep 33") + "'",
      30s);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err, AllOf(HasSubstr("cannot start"), HasSubstr("ulimit -u")));
}

TEST(Start, ThatCannotWriteItsLogsEndsAndSaysSo) {
  TempDir folder;
  const auto file = folder.write("file", "");
  const auto result = run_shell(
      launch("--num_processes 2 --log_dir " + file.string() + "/logs sleep 33"),
      30s);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err, AllOf(HasSubstr("Not a directory"), HasSubstr("--log_dir")));
}

TEST(Start, IsNotHurtByFilesOfEarlierRuns) {
  TempDir folder;
  std::filesystem::create_directories(folder.path() / "attempt_0");
  folder.write("attempt_0/rank_1", "");
  const auto result = run_shell(
      launch(
          "--num_processes 2 --log_dir " + folder.path().string() +
          " echo fine"),
      30s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

class Closed : public ::testing::TestWithParam<const char*> {};

TEST_P(Closed, StreamsNeitherHangNorDeafen) {
  TempDir folder;
  const std::string mark = folder.path() / "ran";
  const auto result = run_shell(
      launch(
          "--num_processes 2 sh -c 'echo x; echo y >&2; echo $RANK >> " + mark +
          "' ") +
          GetParam(),
      30s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_lines(read_file(mark)), 2);
  // It still handles signals.
  const std::string pid = folder.path() / "pid";
  Subprocess waiting(
      {"bash",
       "-c",
       "exec " +
           launch(
               "--num_processes 2 --grace_seconds 2 sh -c 'echo > " + pid +
               "; sleep 61' ") +
           GetParam()});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(pid); }));
  waiting.send(SIGTERM);
  EXPECT_EQ(waiting.wait(20s).exit_code, 128 + SIGTERM);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Closed,
    ::testing::Values("<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"));

/// Waits until both workers have reported that they are done.
std::string wait_for_both(const TempDir& folder) {
  const std::string path = folder.path();
  return "while [ ! -e " + path + "/0 -o ! -e " + path +
         "/1 ]; do sleep 0.05; done; ";
}

/// Only reads well after the last of them.
std::string late_reader(const TempDir& folder) {
  return " | (" + wait_for_both(folder) + "sleep 2.5; cat)";
}

TEST(Reader, ThatPausesGetsEveryLine) {
  TempDir folder;
  const auto result = run_shell(
      launch(
          "--num_processes 2 sh -c 'seq 40000; touch " +
          folder.path().string() + "/$RANK'") +
      late_reader(folder));
  EXPECT_EQ(count_lines(result.out), 80000);
}

TEST(Reader, ThatPausesGetsTheSummaryOfAFailure) {
  TempDir folder;
  const auto result = run_shell(
      launch(
          "--num_processes 2 sh -c 'seq 30000; echo why >&2; touch " +
          folder.path().string() + "/$RANK; " + wait_for_both(folder) +
          "exit 9' 2>&1") +
      late_reader(folder) + "; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_THAT(
      result.out, AllOf(HasSubstr("[launch] Rank "), HasSubstr("why\n")));
}

TEST(Reader, ThatNeverReadsIsLeftAfterASecondSignal) {
  TempDir folder;
  const std::string pid_file = folder.path() / "pid";
  Subprocess shell(
      {"bash",
       "-c",
       launch(
           "--num_processes 2 --grace_seconds 2 sh -c 'echo $PPID > " +
           pid_file + "; exec yes'") +
           " | sleep 50"},
      {{"TEST_MARK", folder.path().filename()}});
  ASSERT_TRUE(eventually([&] { return !read_file(pid_file).empty(); }));
  const pid_t supervisor = std::stoi(read_file(pid_file));
  const std::string mark = "TEST_MARK=" + folder.path().filename().string();
  ASSERT_TRUE(eventually([&] { return workers_with(mark).size() == 2; }));
  const auto workers = workers_with(mark);
  const auto is_gone = [](pid_t pid) {
    const auto status = read_file("/proc/" + std::to_string(pid) + "/status");
    return status.empty() || status.find("State:\tZ") != std::string::npos;
  };
  kill(supervisor, SIGTERM);
  EXPECT_TRUE(eventually(
      [&] { return is_gone(workers[0]) && is_gone(workers[1]); }, 20s));
  EXPECT_FALSE(eventually([&] { return is_gone(supervisor); }, 3s));
  kill(supervisor, SIGTERM);
  EXPECT_TRUE(eventually([&] { return is_gone(supervisor); }, 20s));
  EXPECT_THAT(shell.err(), HasSubstr("exiting now; some output was not read"));
}

TEST(Reader, ThatLeavesDoesNotEndTheJob) {
  TempDir folder;
  const std::string done = folder.path() / "done";
  const auto result = run_shell(
      launch(
          "--num_processes 2 sh -c 'i=0; while [ $i -lt 300 ]; do echo $i; "
          "i=$((i+1)); done; sleep 1; seq 300; echo $RANK >> " +
          done + "'") +
      " | head -1; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_lines(result.out), 1);
  EXPECT_EQ(count_lines(read_file(done)), 2);
  EXPECT_THAT(
      result.err,
      HasSubstr("cannot write to standard output (the reader is gone); the job "
                "continues without it"));
}

TEST(Reader, OfBothStreamsGetsWholeLines) {
  TempDir folder;
  const auto script = lines_program(folder);
  const auto result = run_shell(
      launch("--num_processes 4 python3 " + script + " 2500 60 2>&1") +
      " | (while IFS= read -r -n 4096 -d '' part; do printf %s \"$part\"; "
      "sleep "
      "0.001; done; printf %s \"$part\")");
  std::istringstream lines(result.out);
  int count = 0;
  int torn = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const size_t start = line.find('<');
    const bool is_prefixed =
        start == 0 ||
        line.substr(0, start) == "[rank " + line.substr(start + 1, 1) + "] ";
    torn += !is_prefixed || line.back() != '>' ||
            line.find('<', start + 1) != std::string::npos;
  }
  EXPECT_EQ(count, 20000);
  EXPECT_EQ(torn, 0);
}

TEST(Lines, OfAnyLengthStayWhole) {
  TempDir folder;
  const auto script = lines_program(folder);
  const auto result =
      run_shell(launch("--num_processes 2 python3 " + script + " 20 50000"));
  EXPECT_EQ(count_lines(result.out), 40);
  EXPECT_EQ(count_lines(result.err), 40);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), 'x'), 40L * 50000);
}

TEST(Lines, WithoutEndAreMarked) {
  const auto result = run_shell(
      launch("--num_processes 2 sh -c 'head -c 3000000 /dev/zero | tr "
             "\"\\\\000\" x; echo'"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  int whole = 0;
  for (std::string line; std::getline(lines, line);) {
    whole += line.find(" [the line continues]") == std::string::npos;
  }
  EXPECT_EQ(whole, 2);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), 'x'), 6000000);
}

TEST(Bar, WhileOthersFloodDoesNotStopThem) {
  TempDir folder;
  const auto script = folder.write(
      "bar.py",
      "import os, sys, time\n"
      "if os.environ['RANK'] == '0':\n"
      "    for i in range(100):\n"
      "        sys.stdout.write(f'\\r{i:3}%'); sys.stdout.flush()\n"
      "        time.sleep(0.02)\n"
      "    print()\n"
      "else:\n"
      "    line = 'y' * 99 + '\\n'\n"
      "    for i in range(3000):\n"
      "        sys.stdout.write(line * 50)\n");
  const std::string path = folder.path();
  std::filesystem::create_directory(folder.path() / "parent");
  folder.write("parent/accelerate_parent", "");
  const auto result = run_shell(
      "mkfifo " + path + "/in; exec 9<>" + path + "/in; " +
      launch(
          "--parent_folder " + path + "/parent --num_processes 3 python3 " +
          script.string() + " <&9") +
      " | grep -c yyy");
  EXPECT_EQ(result.out, "300000\n") << result.err;
}

/// A small separate disk.
class SmallDisk {
 public:
  SmallDisk() {
    is_there_ =
        run_shell(
            "mount -t tmpfs -o size=256k tmpfs " + folder_.path().string())
            .exit_code == 0;
  }
  ~SmallDisk() {
    if (is_there_) {
      run_shell("umount -l " + folder_.path().string());
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_there() const { return is_there_; }
  std::filesystem::path path() const { return folder_.path(); }

 private:
  TempDir folder_;
  bool is_there_ = false;
};

TEST(Disk, ThatIsFullIsNamedOnceAndTheLogContinuesWithSpace) {
  SmallDisk disk;
  if (!disk.is_there()) {
    GTEST_SKIP() << "this user may not mount";
  }
  std::ofstream(disk.path() / "ballast") << std::string(200 << 10, 'b');
  const std::string freed = disk.path() / "freed";
  const auto result = run_shell(launch(
      "--num_processes 2 --log_dir " + disk.path().string() +
      " sh -c 'if [ $RANK = 1 ]; then seq 40000; rm -f " +
      disk.path().string() + "/ballast; sleep 0.2; echo after; fi' | tail -1"));
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("No space left on device"), HasSubstr("output is lost")));
  EXPECT_EQ(result.err.find("No space"), result.err.rfind("No space"));
  const auto log =
      read_file(disk.path() / "latest/attempt_0/rank_1/stdout.log");
  EXPECT_THAT(
      log, AllOf(HasSubstr("bytes are missing here"), HasSubstr("after\n")));
}

TEST(Disk, ThatIsFullUnderStandardOutputGivesNoZero) {
  const auto result =
      run_shell(launch("--num_processes 2 sh -c 'seq 100' > /dev/full"));
  EXPECT_EQ(result.exit_code, 74);
  EXPECT_THAT(
      result.err,
      HasSubstr("cannot write to standard output (No space left on device)"));
}

TEST(Disk, WhoseFilesMayNotGrowIsAFullDisk) {
  TempDir folder;
  const std::string logs = folder.path() / "logs";
  // Through a pipe, because the limit also applies to the test's own files.
  const auto result = run_shell(
      "(ulimit -f 1; " +
      launch("--num_processes 2 --log_dir " + logs + " --tee 0 seq 100000") +
      " 2>&1; echo $?) | cat");
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("File too large), so output is lost until there is space "
                    "again; raise the limit on file sizes (ulimit -f)"),
          EndsWith("\n74\n")));
  EXPECT_EQ(count_lines(result.out), 3) << result.out; // once per file
  const auto shown = run_shell(
      "(ulimit -f 1; " + launch("--num_processes 2 seq 100000 2>&1 >") +
      (folder.path() / "out").string() + "; echo $?) | cat");
  EXPECT_EQ(
      shown.out,
      "[launch] cannot write to standard output (File too large); the job "
      "continues without it\n74\n");
}

TEST(Failure, WhoseChildrenFloodStderrIsReportedInBoundedTime) {
  const auto result = run_shell(
      launch("--num_processes 2 sh -c 'if [ $RANK = 1 ]; then setsid yes >&2 & "
             "setsid yes >&2 & setsid yes >&2 & exit 7; fi; exec sleep 61' "
             "2>/dev/null"),
      40s);
  EXPECT_EQ(result.exit_code, 7);
}

TEST(Restarts, WaitLongerEachTime) {
  const auto result =
      run_shell(launch("--max_restarts 5 --num_processes 2 sh -c 'exit 3'"));
  EXPECT_EQ(result.exit_code, 3);
  // 0.1 + 0.2 + 0.4 + 0.8 + 1.6 s.
  EXPECT_GE(result.duration, 3100ms);
}

TEST(Restarts, OfASingleWorkerComeOneAfterTheOther) {
  const auto result =
      run_shell(launch("--max_restarts 3 --num_processes 1 sh -c "
                       "'echo from $TORCHELASTIC_RESTART_COUNT; sleep 0.4; "
                       "echo to $TORCHELASTIC_RESTART_COUNT; exit 3'"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(
      result.out, "from 0\nto 0\nfrom 1\nto 1\nfrom 2\nto 2\nfrom 3\nto 3\n");
}

TEST(Restarts, CanBeInterruptedWhileTheyWait) {
  Subprocess job(
      {kProgram,
       "launch",
       "--max_restarts",
       "1000",
       "--num_processes",
       "2",
       "sh",
       "-c",
       "exit 3"});
  ASSERT_TRUE(eventually([&] {
    return job.err().find("restart 6 of 1000") != std::string::npos;
  }));
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(20s).exit_code, 128 + SIGTERM);
}

} // namespace
} // namespace accelerate::testing
