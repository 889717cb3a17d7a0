// SPDX-License-Identifier: Apache-2.0
// Signals to the launcher: what reaches the workers, how often, and what ends.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "launcher/launch/plan/shell_quote.h"
#include "launcher/launch/supervise/process_tree.h"
#include "launcher/launch/supervise/signal_merger.h"
#include "support/cluster.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/terminal.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using namespace std::chrono_literals;

/// A job of two workers that record every signal they receive.
class Signals : public ::testing::Test {
 protected:
  void launch(std::vector<std::string> flags = {}) {
    const auto script = folder_.write(
        "listen.py",
        "import os, signal, sys, time\n"
        "r = os.environ['RANK']\n"
        "path = os.path.join(sys.argv[1], 'log' + r)\n"
        "log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        // One handler may interrupt another one, which `print` does not allow.
        "def write(text):\n"
        "    os.write(log, (text + '\\n').encode())\n"
        "def note(n, f):\n"
        "    write(signal.Signals(n).name)\n"
        "    if n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "        time.sleep(0.3); sys.exit(0)\n"
        "for n in ('USR1', 'USR2', 'WINCH', 'CONT', 'TERM', 'INT', 'HUP'):\n"
        "    signal.signal(getattr(signal, 'SIG' + n), note)\n"
        "write('ready')\n"
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
  /// SIGCONT may arrive more often, so that suspended processes can end.
  bool each_got_once(const std::vector<std::string>& names) const {
    return std::all_of(names.begin(), names.end(), [&](const auto& name) {
      return log(0).find(name) != std::string::npos &&
             log(0).find(name) == log(0).rfind(name) &&
             log(1).find(name) != std::string::npos &&
             log(1).find(name) == log(1).rfind(name);
    });
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

TEST_F(Signals, ForWorkersArePassedOnAndEndNoProcess) {
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
  EXPECT_TRUE(each_got_once({"SIGUSR1", "SIGTERM"})) << log(0) << log(1);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Signals, ThatEndAWorkerFirstAreNotItsFailure) {
  const auto script =
      folder_.write("wait.sh", "echo ready > \"$1/log$RANK\"; exec sleep 60\n");
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const char* name : {"log0", "log1"}) {
      std::filesystem::remove(folder_.path() / name);
    }
    Subprocess job(
        {kProgram,
         "launch",
         "--num_processes",
         "2",
         "--max_restarts",
         "3",
         "sh",
         script,
         folder_.path()},
        {});
    ASSERT_TRUE(eventually(
        [&] { return log(0) == "ready\n" && log(1) == "ready\n"; }, kLimit));
    // With a slow witness, the workers certainly end before the launcher knows
    // why.
    for (const pid_t pid : descendants_of(job.pid())) {
      if (read_file("/proc/" + std::to_string(pid) + "/comm") ==
          "launch-witness\n") {
        kill(pid, SIGSTOP);
      }
    }
    kill(-job.pid(), signal);
    const auto result = job.wait(kLimit);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.err, HasSubstr("stopped 2 processes"));
    EXPECT_THAT(result.err, Not(HasSubstr("killed")));
    EXPECT_THAT(result.err, Not(HasSubstr("Restarting")));
  }
}

TEST_F(Signals, ToBothProcessesOfTheLauncherReachWorkersOnce) {
  for (const int last : {SIGTERM, SIGHUP}) {
    launch();
    const auto tell_both = [this](int signal) {
      const pid_t supervisor = descendants_of(launcher_).at(0);
      kill(launcher_, signal);
      kill(supervisor, signal);
    };
    tell_both(SIGUSR1);
    ASSERT_TRUE(both_logs_are("ready\nSIGUSR1\n")) << log(0) << log(1);
    tell_both(last);
    const auto result = job_->wait(20s);
    EXPECT_EQ(result.exit_code, 128 + last);
    EXPECT_THAT(result.err, Not(HasSubstr("killing them")));
    EXPECT_TRUE(
        each_got_once({"SIGUSR1", last == SIGHUP ? "SIGHUP" : "SIGTERM"}))
        << log(0) << log(1);
    EXPECT_THAT(left(), IsEmpty());
    for (const char* name : {"log0", "log1"}) {
      std::filesystem::remove(folder_.path() / name);
    }
  }
}

TEST_F(Signals, ToTheLaunchersNameReachWorkersOnce) {
  launch();
  // The processes selected by `killall accelerate` and `pkill -f "accelerate
  // launch"`.
  for (const bool by_command_line : {false, true}) {
    for (const pid_t pid : processes_with("TEST_MARK=" + mark())) {
      const std::string process = "/proc/" + std::to_string(pid);
      std::string command = read_file(process + "/cmdline");
      std::replace(command.begin(), command.end(), '\0', ' ');
      if (by_command_line
              ? command.find("accelerate launch") != std::string::npos
              : read_file(process + "/comm") == "accelerate\n") {
        kill(pid, by_command_line ? SIGUSR2 : SIGUSR1);
      }
    }
    ASSERT_TRUE(both_logs_are(
        by_command_line ? "ready\nSIGUSR1\nSIGUSR2\n" : "ready\nSIGUSR1\n"))
        << log(0) << log(1);
  }
  kill(launcher_, SIGTERM);
  EXPECT_EQ(job_->wait(20s).exit_code, 128 + SIGTERM);
  EXPECT_TRUE(each_got_once({"SIGUSR1", "SIGUSR2"})) << log(0) << log(1);
}

TEST_F(Signals, ToWhateverRunsTheScriptReachWorkersOnce) {
  launch();
  // The processes selected by `pkill -f listen.py`: launcher and workers.
  for (const pid_t pid : processes_with("TEST_MARK=" + mark())) {
    if (read_file("/proc/" + std::to_string(pid) + "/cmdline")
            .find("listen.py") != std::string::npos) {
      kill(pid, SIGTERM);
    }
  }
  EXPECT_EQ(job_->wait(20s).exit_code, 128 + SIGTERM);
  EXPECT_TRUE(each_got_once({"SIGTERM"})) << log(0) << log(1);
}

TEST_F(Signals, OfABrokenPipeEndNothing) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "sh",
       "-c",
       // The supervisor, and the guardian above it.
       "kill -PIPE $PPID $(cut -d ' ' -f 4 /proc/$PPID/stat)"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

/// Two workers on a terminal, which record its end and need a second for it.
class Hangup : public ::testing::Test {
 protected:
  std::vector<std::string> command() const {
    const std::string path = folder_.path();
    return {
        kProgram,
        "launch",
        "--num_processes",
        "2",
        "sh",
        "-c",
        "trap 'trap \"\" HUP; sleep 1; touch " + path +
            "/saved$RANK; exit' HUP; touch " + path +
            "/$RANK; while :; do sleep 0.1; done"};
  }
  bool both(const std::string& name) const {
    return eventually([&] {
      return std::filesystem::exists(folder_.path() / (name + "0")) &&
             std::filesystem::exists(folder_.path() / (name + "1"));
    });
  }

  TempDir folder_;
};

TEST_F(Hangup, ReachesTheWorkersOfALauncherThatLeadsItsSession) {
  Terminal terminal(command(), {});
  ASSERT_TRUE(both(""));
  terminal.hang_up();
  EXPECT_EQ(terminal.wait(), 128 + SIGHUP);
  EXPECT_TRUE(both("saved"));
}

TEST_F(Hangup, LeavesTheWorkersOfAShellTheirGrace) {
  // Signalled twice: by the shell that leads the session, and by the kernel.
  Terminal terminal({"/bin/bash", "--norc", "-i"}, {});
  std::string line;
  for (const auto& word : command()) {
    line += shell_quoted(word) + ' ';
  }
  terminal.type(line + '\n');
  ASSERT_TRUE(both(""));
  terminal.hang_up();
  EXPECT_TRUE(both("saved"));
}

TEST_F(Signals, SuspendAndContinueTheWholeJob) {
  launch();
  const auto state_of = [](pid_t pid) {
    const auto status = read_file("/proc/" + std::to_string(pid) + "/status");
    const size_t at = status.find("State:\t");
    return at == std::string::npos ? '?' : status[at + 7];
  };
  const auto workers = workers_with("TEST_MARK=" + mark());
  ASSERT_EQ(workers.size(), 2U);
  kill(launcher_, SIGTSTP);
  EXPECT_TRUE(eventually(
      [&] {
        return state_of(launcher_) == 'T' && state_of(workers[0]) == 'T' &&
               state_of(workers[1]) == 'T';
      },
      kLimit));
  kill(launcher_, SIGCONT);
  EXPECT_TRUE(eventually(
      [&] {
        return state_of(launcher_) != 'T' && state_of(workers[0]) != 'T' &&
               state_of(workers[1]) != 'T';
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

/// Workers that handle SIGWINCH from the start, and `signals` (which they write
/// to their log) once a file `go` exists.
class SlowStart : public Signals {
 protected:
  void launch(
      const std::string& signals,
      const std::string& grace,
      const std::vector<std::string>& flags = {}) {
    const auto script = folder_.write(
        "slow.py",
        "import os, signal, sys, time\n"
        "folder = sys.argv[1]\n"
        "path = os.path.join(folder, 'log' + os.environ['RANK'])\n"
        "log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "def write(text):\n"
        "    os.write(log, (text + '\\n').encode())\n"
        "def note(n, f):\n"
        "    write(signal.Signals(n).name)\n"
        "    if n == signal.SIGTERM: os._exit(75)\n"
        "signal.signal(signal.SIGWINCH, note)\n"
        "write('starting')\n"
        "while not os.path.exists(os.path.join(folder, 'go')):\n"
        "    time.sleep(0.02)\n"
        "for name in sys.argv[2].split():\n"
        "    signal.signal(getattr(signal, name), note)\n"
        "while not os.path.exists(os.path.join(folder, 'end')):\n"
        "    time.sleep(0.02)\n");
    std::vector<std::string> command = {
        kProgram, "launch", "--num_processes", "2", "--grace_seconds", grace};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"python3", script, folder_.path(), signals});
    job_ = std::make_unique<Subprocess>(
        command, std::map<std::string, std::string>{{"TEST_MARK", mark()}});
    ASSERT_TRUE(both_logs_are("starting\n"));
    launcher_ = job_->pid();
  }
  /// Sends a signal that the workers do not handle yet, and waits until the
  /// launcher has taken it: signals are passed on in order.
  void send_early(int signal) {
    kill(launcher_, signal);
    kill(launcher_, SIGWINCH);
    ASSERT_TRUE(both_logs_are("starting\nSIGWINCH\n")) << job_->err();
  }
  bool wait_for_words(const std::string& words) const {
    return eventually(
        [&] { return job_->err().find(words) != std::string::npos; }, kLimit);
  }
};

TEST_F(SlowStart, GetsSignalsOnceItHandlesThem) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const std::string name = signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2";
    launch(name, "900");
    send_early(signal);
    folder_.write("go", "");
    EXPECT_TRUE(both_logs_are("starting\nSIGWINCH\n" + name + "\n"))
        << log(0) << log(1) << job_->err();
    folder_.write("end", "");
    EXPECT_EQ(job_->wait(kLimit).exit_code, 0) << job_->err();
    for (const char* file : {"go", "end", "log0", "log1"}) {
      std::filesystem::remove(folder_.path() / file);
    }
  }
}

TEST_F(SlowStart, GetsSignalsAfterARestart) {
  launch("SIGUSR1", "900", {"--max_restarts", "1"});
  send_early(SIGUSR1);
  kill(workers_with("TEST_MARK=" + mark()).at(1), SIGSEGV);
  // SIGTERM ends the other, as it has no handler.
  ASSERT_TRUE(both_logs_are("starting\nSIGWINCH\nstarting\n")) << job_->err();
  folder_.write("go", "");
  EXPECT_TRUE(both_logs_are("starting\nSIGWINCH\nstarting\nSIGUSR1\n"))
      << log(0) << log(1) << job_->err();
  folder_.write("end", "");
  EXPECT_EQ(job_->wait(kLimit).exit_code, 0) << job_->err();
}

TEST_F(SlowStart, GetsTheRequestToEndOnceItHandlesIt) {
  launch("SIGTERM", "900");
  kill(launcher_, SIGTERM);
  ASSERT_TRUE(wait_for_words("to install a SIGTERM handler (ranks: 0, 1)"));
  folder_.write("go", "");
  EXPECT_EQ(job_->wait(kLimit).exit_code, 75) << job_->err();
  EXPECT_TRUE(each_got_once({"SIGTERM"})) << log(0) << log(1);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(SlowStart, IsNotEndedBySignalsThatItNeverHandles) {
  launch("SIGCONT", "2");
  send_early(SIGUSR1);
  EXPECT_TRUE(wait_for_words("dropped SIGUSR1 (ranks: 0, 1)")) << job_->err();
  folder_.write("go", "");
  folder_.write("end", "");
  EXPECT_EQ(job_->wait(kLimit).exit_code, 0) << job_->err();
}

TEST_F(SlowStart, IsEndedByTheRequestThatItNeverHandles) {
  launch("SIGCONT", "2");
  kill(launcher_, SIGTERM);
  EXPECT_EQ(job_->wait(kLimit).exit_code, 128 + SIGTERM) << job_->err();
  EXPECT_THAT(job_->err(), Not(HasSubstr("killing them")));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(SlowStart, EndsAtOnceAtASecondRequestOrIfAWorkerFails) {
  for (const bool is_failure : {false, true}) {
    launch("SIGCONT", "900");
    kill(launcher_, SIGTERM);
    ASSERT_TRUE(wait_for_words("to install a SIGTERM handler"));
    if (is_failure) {
      kill(workers_with("TEST_MARK=" + mark()).at(1), SIGSEGV);
    } else {
      // Within a twentieth of a second it would count as the same one.
      usleep(100000);
      kill(launcher_, SIGTERM);
    }
    EXPECT_EQ(job_->wait(kLimit).exit_code, 128 + SIGTERM) << job_->err();
    EXPECT_THAT(left(), IsEmpty());
    for (const char* file : {"log0", "log1"}) {
      std::filesystem::remove(folder_.path() / file);
    }
  }
}

TEST_F(SlowStart, DoesNotDelayTheEndAfterAFailure) {
  launch("SIGCONT", "900");
  kill(workers_with("TEST_MARK=" + mark()).at(1), SIGSEGV);
  EXPECT_EQ(job_->wait(kLimit).exit_code, 128 + SIGSEGV) << job_->err();
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
    EXPECT_EQ(
        job.err().find("killing processes") != std::string::npos, !is_long);
  }
}

TEST(Contained, NoProcessIsLeftAfterAKillOfLauncherAndGuardianTogether) {
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
    ASSERT_THAT(err, HasSubstr("this system does not allow"));
    GTEST_SKIP() << err;
  }
  const auto below = descendants_of(job.pid());
  ASSERT_GE(below.size(), 1U);
  // Suspend both first, so that neither can react to the other's end.
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
  if (result.err.find("this system does not allow") != std::string::npos) {
    GTEST_SKIP() << result.err;
  }
  EXPECT_EQ(result.exit_code, 5) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[launch] Rank 1 "));
}

struct Merged {
  Merged()
      : merger(
            loop,
            [this](int) { return is_witness_busy; },
            [this](int signal, bool is_group_signalled) {
              got.emplace_back(signal, is_group_signalled);
            }) {}
  void add(const Signal& signal, std::vector<SignalReceiver> all) {
    for (const SignalReceiver one : all) {
      merger.add(signal, one);
    }
  }
  void wait() {
    loop.after(200ms, [this] { loop.stop(); });
    loop.run();
  }
  bool is_witness_busy = false;
  EventLoop loop;
  std::vector<std::pair<int, bool>> got;
  SignalMerger merger;
};

constexpr auto kSupervisor = SignalReceiver::kSupervisor;
constexpr auto kGuardian = SignalReceiver::kGuardian;
constexpr auto kWitness = SignalReceiver::kWitness;

TEST(SignalMerger, TellsAGroupFromTheLauncher) {
  Merged merged;
  merged.add({SIGTERM, 7}, {kSupervisor, kWitness, kGuardian});
  merged.add({SIGUSR1, 7}, {kGuardian, kSupervisor});
  merged.add({SIGUSR2, 7}, {kGuardian});
  merged.add({SIGWINCH, 7}, {kWitness}); // only the witness got it
  merged.add({SIGINT, 0}, {kSupervisor, kGuardian, kWitness});
  merged.wait();
  EXPECT_THAT(
      merged.got,
      ElementsAre(
          Pair(SIGTERM, true),
          Pair(SIGUSR1, false),
          Pair(SIGUSR2, false),
          Pair(SIGINT, true)));
}

TEST(SignalMerger, KnowsALateTwinAndASecondRequest) {
  Merged merged;
  merged.add({SIGTERM, 7}, {kSupervisor, kWitness});
  merged.wait();
  merged.add({SIGTERM, 7}, {kGuardian}); // the late copy
  merged.wait();
  EXPECT_THAT(merged.got, ElementsAre(Pair(SIGTERM, true)));
  merged.add({SIGTERM, 7}, {kGuardian});
  merged.wait();
  EXPECT_THAT(
      merged.got, ElementsAre(Pair(SIGTERM, true), Pair(SIGTERM, false)));
}

TEST(SignalMerger, TakesTheGroupAndItsLauncherForOne) {
  Merged merged;
  merged.add({SIGTERM, 7}, {kGuardian, kSupervisor, kWitness, kGuardian});
  merged.wait();
  EXPECT_THAT(merged.got, ElementsAre(Pair(SIGTERM, true)));
}

TEST(SignalMerger, WaitsForAWitnessThatIsNotScheduled) {
  Merged merged;
  merged.is_witness_busy = true;
  merged.add({SIGTERM, 7}, {kSupervisor, kGuardian});
  merged.wait();
  EXPECT_THAT(merged.got, IsEmpty());
  merged.add({SIGTERM, 7}, {kWitness});
  EXPECT_THAT(merged.got, ElementsAre(Pair(SIGTERM, true)));
}

TEST(SignalMerger, SaysThatARequestToEndWaits) {
  Merged merged;
  merged.add({SIGUSR1, 7}, {kSupervisor});
  EXPECT_FALSE(merged.merger.is_request_waiting());
  merged.add({SIGINT, 7}, {kSupervisor});
  EXPECT_TRUE(merged.merger.is_request_waiting());
  merged.wait();
  EXPECT_FALSE(merged.merger.is_request_waiting());
}

TEST(SignalMerger, TellsWorkersWhatCameBeforeThem) {
  Merged merged;
  merged.add({SIGUSR1, 7}, {kSupervisor, kWitness});
  sigset_t mask;
  sigset_t old;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  sigprocmask(SIG_BLOCK, &mask, &old);
  raise(SIGUSR2);
  merged.merger.workers_began();
  merged.add({SIGUSR2, 7}, {kSupervisor, kWitness, kGuardian});
  merged.wait();
  sigwaitinfo(&mask, nullptr);
  sigprocmask(SIG_SETMASK, &old, nullptr);
  merged.add({SIGUSR2, 7}, {kSupervisor, kWitness, kGuardian});
  EXPECT_THAT(
      merged.got,
      ElementsAre(
          Pair(SIGUSR1, false), Pair(SIGUSR2, false), Pair(SIGUSR2, true)));
}

} // namespace
} // namespace accelerate::testing
