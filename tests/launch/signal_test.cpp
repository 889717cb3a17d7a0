// SPDX-License-Identifier: Apache-2.0
// Signals to the launcher: what reaches the workers, how often, and what ends.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "launch/supervise/process_tree.h"
#include "launch/supervise/signal_merger.h"
#include "support/cluster.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using namespace std::chrono_literals;

/// A job of two workers that write down every signal they get.
class Signals : public ::testing::Test {
 protected:
  void launch(std::vector<std::string> flags = {}) {
    const auto script = folder_.write(
        "listen.py",
        "import os, signal, sys, time\n"
        "r = os.environ['RANK']\n"
        "log = open(os.path.join(sys.argv[1], 'log' + r), 'a')\n"
        "def note(n, f):\n"
        "    print(signal.Signals(n).name, file=log, flush=True)\n"
        "    if n in (signal.SIGTERM, signal.SIGINT) and len(sys.argv) < 3:\n"
        "        time.sleep(0.3); sys.exit(0)\n"
        "for n in ('USR1', 'USR2', 'WINCH', 'CONT', 'TERM', 'INT'):\n"
        "    signal.signal(getattr(signal, 'SIG' + n), note)\n"
        "print('ready', file=log, flush=True)\n"
        "while True: time.sleep(0.05)\n");
    std::vector<std::string> command = {
        kProgram, "launch", "--num_processes", "2"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"python3", script, folder_.path()});
    job_ = std::make_unique<Subprocess>(
        command, std::map<std::string, std::string>{{"TEST_MARK", mark()}});
    ASSERT_TRUE(
        eventually([&] { return log(0) != "" && log(1) != ""; }, kLimit));
    launcher_ = job_->pid();
  }

  std::string mark() const { return folder_.path().filename(); }
  std::string log(int rank) const {
    return read_file(folder_.path() / ("log" + std::to_string(rank)));
  }
  bool both_logs_are(const std::string& text) const {
    return eventually([&] { return log(0) == text && log(1) == text; }, kLimit);
  }
  std::vector<pid_t> left() const {
    const std::string variable = "TEST_MARK=" + mark();
    eventually([&] { return processes_with(variable).empty(); }, kLimit);
    return processes_with(variable);
  }

  TempDir folder_;
  std::unique_ptr<Subprocess> job_;
  pid_t launcher_ = -1;
};

TEST_F(Signals, ForWorkersArePassedOnAndEndNothing) {
  launch();
  std::string expected = "ready\n";
  for (const auto& [signal, name] :
       {std::pair(SIGUSR1, "SIGUSR1\n"),
        std::pair(SIGUSR2, "SIGUSR2\n"),
        std::pair(SIGWINCH, "SIGWINCH\n"),
        std::pair(SIGCONT, "SIGCONT\n")}) {
    kill(launcher_, signal);
    expected += name;
    ASSERT_TRUE(both_logs_are(expected)) << log(0) << log(1);
  }
  kill(launcher_, SIGTERM);
  EXPECT_EQ(job_->wait(kLimit).exit_code, 128 + SIGTERM);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Signals, ToTheWholeGroupReachWorkersOnce) {
  launch();
  kill(-launcher_, SIGUSR1);
  ASSERT_TRUE(both_logs_are("ready\nSIGUSR1\n")) << log(0) << log(1);
  kill(-launcher_, SIGTERM);
  EXPECT_EQ(job_->wait(kLimit).exit_code, 128 + SIGTERM);
  // SIGCONT goes to everybody, so that whoever was suspended can end.
  for (const int rank : {0, 1}) {
    const std::string all = log(rank);
    EXPECT_EQ(all.find("SIGTERM"), all.rfind("SIGTERM")) << all;
    EXPECT_EQ(all.find("SIGUSR1"), all.rfind("SIGUSR1")) << all;
  }
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Signals, SuspendAndContinueTheWholeJob) {
  launch();
  const auto state_of = [](pid_t pid) {
    const auto status = read_file("/proc/" + std::to_string(pid) + "/status");
    const size_t at = status.find("State:\t");
    return at == std::string::npos ? '?' : status[at + 7];
  };
  const auto below = descendants_of(launcher_);
  ASSERT_EQ(below.size(), 3U);
  kill(launcher_, SIGTSTP);
  EXPECT_TRUE(eventually(
      [&] {
        return state_of(launcher_) == 'T' && state_of(below[1]) == 'T' &&
               state_of(below[2]) == 'T';
      },
      kLimit));
  kill(launcher_, SIGCONT);
  EXPECT_TRUE(eventually(
      [&] {
        return state_of(launcher_) != 'T' && state_of(below[1]) != 'T' &&
               state_of(below[2]) != 'T';
      },
      kLimit));
  kill(launcher_, SIGTERM);
  EXPECT_EQ(job_->wait(kLimit).exit_code, 128 + SIGTERM);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Signals, QuitEndsEverythingWithTheStacksOfPython) {
  launch();
  kill(launcher_, SIGQUIT);
  const auto result = job_->wait(kLimit);
  EXPECT_EQ(result.exit_code, 128 + SIGQUIT);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("Fatal Python error: Aborted"), HasSubstr("listen.py")));
  EXPECT_THAT(left(), IsEmpty());
}

TEST(Grace, IsAsLongAsAsked) {
  for (const bool is_long : {false, true}) {
    TempDir folder;
    const std::string path = folder.path();
    Subprocess job(
        {kProgram,
         "launch",
         "--num_processes",
         "2",
         "--grace_seconds",
         is_long ? "900" : "1",
         "sh",
         "-c",
         std::string("trap 'sleep ") + (is_long ? "2" : "960") + "; touch " +
             path + "/saved$RANK; exit' TERM; touch " + path +
             "/$RANK; while :; do sleep 0.1; done"});
    ASSERT_TRUE(eventually(
        [&] {
          return std::filesystem::exists(folder.path() / "0") &&
                 std::filesystem::exists(folder.path() / "1");
        },
        kLimit));
    job.send(SIGTERM);
    EXPECT_EQ(job.wait(kLimit).exit_code, 128 + SIGTERM);
    EXPECT_EQ(std::filesystem::exists(folder.path() / "saved1"), is_long);
    EXPECT_EQ(job.err().find("killing them") != std::string::npos, !is_long);
  }
}

TEST(Contained, NobodyIsLeftAfterAKillOfLauncherAndGuardianTogether) {
  TempDir folder;
  const std::string mark = folder.path().filename();
  Subprocess job(
      {kProgram,
       "launch",
       "--contain",
       "--num_processes",
       "2",
       "sh",
       "-c",
       "setsid sleep 963 & (setsid sh -c 'sleep 964 & sleep 965' &); touch " +
           folder.path().string() + "/$RANK; sleep 961"},
      {{"TEST_MARK", mark}});
  if (!eventually([&] {
        return std::filesystem::exists(folder.path() / "0") &&
               std::filesystem::exists(folder.path() / "1");
      })) {
    const std::string err = job.err();
    ASSERT_THAT(err, HasSubstr("this system refuses"));
    GTEST_SKIP() << err;
  }
  const auto below = descendants_of(job.pid());
  ASSERT_GE(below.size(), 1U);
  // Suspended first: neither can do anything about the other's end.
  kill(job.pid(), SIGSTOP);
  kill(below[0], SIGSTOP);
  kill(below[0], SIGKILL);
  kill(job.pid(), SIGKILL);
  job.wait(kLimit);
  const std::string variable = "TEST_MARK=" + mark;
  EXPECT_TRUE(
      eventually([&] { return processes_with(variable).empty(); }, kLimit));
}

TEST(Contained, JobsRunAsOthersDo) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--contain",
       "--num_processes",
       "2",
       "sh",
       "-c",
       "echo $RANK; [ $RANK = 0 ] || exit 5; exec sleep 961"});
  if (result.err.find("this system refuses") != std::string::npos) {
    GTEST_SKIP() << result.err;
  }
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("first failure: rank 1"));
}

struct Merged {
  Merged()
      : merger(loop, getppid(), [this](int signal, bool is_group_told) {
          got.emplace_back(signal, is_group_told);
        }) {}
  void wait() {
    loop.after(200ms, [this] { loop.stop(); });
    loop.run();
  }
  EventLoop loop;
  std::vector<std::pair<int, bool>> got;
  SignalMerger merger;
};

TEST(SignalMerger, TellsAGroupFromOneProcess) {
  Merged merged;
  merged.merger.came({SIGTERM, 7});
  merged.merger.came_through_guardian({SIGTERM, 7});
  merged.merger.came_through_guardian({SIGUSR1, 7});
  merged.merger.came({SIGINT, 0, true});
  merged.wait();
  EXPECT_THAT(
      merged.got,
      ElementsAre(
          Pair(SIGTERM, true), Pair(SIGINT, true), Pair(SIGUSR1, false)));
}

TEST(SignalMerger, KnowsALateTwinAndASecondRequest) {
  Merged merged;
  merged.merger.came({SIGTERM, 7});
  merged.wait();
  merged.merger.came_through_guardian({SIGTERM, 7}); // The late twin.
  merged.wait();
  EXPECT_THAT(merged.got, ElementsAre(Pair(SIGTERM, false)));
  merged.merger.came({SIGTERM, 7});
  merged.merger.came({SIGTERM, 7});
  merged.wait();
  EXPECT_EQ(merged.got.size(), 3U);
}

} // namespace
} // namespace accelerate::testing
