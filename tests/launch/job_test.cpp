// SPDX-License-Identifier: Apache-2.0
// The decisions of a job, without processes.
#include "launcher/launch/job.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/exit_codes.h"
#include "core/process/run_report.h"
#include "launcher/launch/machines/diagnosis.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using namespace std::chrono_literals;
using testing::TempDir;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Records its orders.
class RecordingMachine : public Machine {
 public:
  void start(int attempt) override {
    log.push_back("start " + std::to_string(attempt));
  }
  void stop(const StopOrder& order) override {
    log.push_back(
        (order.is_to_restart ? "restart "
         : order.is_request  ? "request "
                             : "stop ") +
        std::to_string(order.signal));
    if (stopped) {
      stopped();
    }
  }
  void end(const JobEnding& ending) override {
    log.push_back("end " + std::to_string(ending.exit_code));
    summary = ending.summary;
  }
  std::vector<std::string> log;
  std::string summary;
  /// Answers within the call, like a machine without workers.
  std::function<void()> stopped;
};

struct TwoMachines {
  explicit TwoMachines(int max_restarts = 0)
      : job(loop,
            {&first, &second},
            {.max_restarts = max_restarts,
             .return_limit = std::chrono::seconds(30)},
            [](const std::string&) {}) {
    job.start();
  }
  /// Waits for the pause before a restart.
  void wait_until_started(size_t num_orders) {
    const std::function<void()> look = [&] {
      if (second.log.size() >= num_orders) {
        loop.stop();
      } else {
        loop.after(std::chrono::milliseconds(5), look);
      }
    };
    look();
    loop.run();
  }
  EventLoop loop;
  RecordingMachine first;
  RecordingMachine second;
  Job job;
};

TEST(Job, EndsWithZeroWhenAllHaveFinished) {
  TwoMachines two;
  two.job.machine_finished(1);
  EXPECT_THAT(two.second.log, ElementsAre("start 0"));
  two.job.machine_finished(0);
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "end 0"));
  EXPECT_THAT(two.second.log, ElementsAre("start 0", "end 0"));
}

TEST(Job, ReportsTheFirstFailureAndNotItsConsequences) {
  TwoMachines two;
  two.job.machine_failed(
      1, {3, "node1", 7, "failed with exit code 7", {"why"}});
  two.job.machine_failed(0, {0, "node0", 134, "aborted (SIGABRT)", {}});
  two.job.machine_stopped(0);
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "stop 15"));
  two.job.machine_stopped(1);
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "stop 15", "end 7"));
  EXPECT_EQ(
      two.first.summary,
      "[launch] Rank 3 on node1 failed with exit code 7; the "
      "last lines of its stderr:\n    why");
}

TEST(Run, IsDescribedAsFarAsItIsKnown) {
  const std::filesystem::path here = "/home/me";
  EXPECT_EQ(describe_run({}, 123s, here), "");
  EXPECT_EQ(
      describe_run(
          {"/home/me/runs/a", 1200, "/data/checkpoint_3"}, 123.4s, here),
      "[launch] Finished in 2 min 3 s: 1,200 steps (9.7 steps/s), last "
      "checkpoint /data/checkpoint_3, logs in runs/a");
  EXPECT_EQ(
      describe_run({"", 1, ""}, 2s, here),
      "[launch] Finished in 2.0 s: 1 step (0.5 steps/s)");
  EXPECT_EQ(
      describe_run({"", 0, "/home/me/x"}, 3720s, here),
      "[launch] Finished in 1 h 2 min: last checkpoint x");
}

TEST(Run, IsReportedByTheProcessThatWritesFirst) {
  TempDir folder;
  const std::string path = folder.path() / "report";
  const UniqueFile file(open(path.c_str(), O_RDWR | O_CREAT, 0600));
  EXPECT_TRUE(read_run_report(file.get()).is_empty());
  RunReporter reporter([&](const std::string&) { return path; });
  reporter.set_folder("runs/a long name");
  reporter.set_checkpoint("c");
  reporter.set_steps(12);
  reporter.set_folder("runs/a");
  EXPECT_EQ(read_run_report(file.get()), (RunReport{"runs/a", 12, "c"}));
  const pid_t child = fork();
  if (child == 0) {
    RunReporter other([&](const std::string&) { return path; });
    other.set_steps(1);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(read_run_report(file.get()).num_steps, 12);
}

TEST(Job, RestartsOnlyWhenAllHaveStopped) {
  TwoMachines two(1);
  two.job.machine_finished(0);
  two.job.machine_failed(1, {3, "node1", 7, "failed with exit code 7", {}});
  two.job.machine_stopped(1);
  EXPECT_THAT(two.second.log, ElementsAre("start 0", "restart 15"));
  two.job.machine_stopped(0);
  two.wait_until_started(3);
  EXPECT_THAT(two.second.log, ElementsAre("start 0", "restart 15", "start 1"));
  two.job.machine_failed(0, {0, "node0", 9, "exit code 9", {}});
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  EXPECT_EQ(two.first.log.back(), "end 9");
}

TEST(Job, IsNotTakenForStoppedByAMachineThatAnswersAtOnce) {
  TwoMachines two(1);
  two.first.stopped = [&] { two.job.machine_stopped(0); };
  two.job.machine_failed(0, {0, "node0", 7, "failed with exit code 7", {}});
  two.job.machine_stopped(1);
  two.wait_until_started(3);
  two.job.machine_failed(0, {0, "node0", 9, "exit code 9", {}});
  EXPECT_THAT(
      two.second.log,
      ElementsAre("start 0", "restart 15", "start 1", "stop 15"));
  two.job.machine_stopped(1);
  EXPECT_EQ(two.second.log.back(), "end 9");
}

TEST(Job, RestartsOnceIfAllAnswerAtOnce) {
  TwoMachines two(5);
  two.first.stopped = [&] { two.job.machine_stopped(0); };
  two.second.stopped = [&] { two.job.machine_stopped(1); };
  two.job.machine_failed(1, {1, "node1", 7, "failed with exit code 7", {}});
  // The first pause is 0.1 s, a second one would be 0.2 s.
  two.loop.after(std::chrono::milliseconds(500), [&] { two.loop.stop(); });
  two.loop.run();
  EXPECT_THAT(two.second.log, ElementsAre("start 0", "restart 15", "start 1"));
}

TEST(Job, IsInterruptedBetweenTwoAttempts) {
  TwoMachines two(1);
  two.job.machine_failed(1, {3, "node1", 7, "failed with exit code 7", {}});
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  two.job.interrupt(SIGTERM, "node0", 2);
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  EXPECT_THAT(
      two.second.log,
      ElementsAre("start 0", "restart 15", "request 15", "end 143"));
}

TEST(Job, RestartsWhenALostMachineIsBack) {
  TwoMachines two(1);
  two.job.machine_lost(1, "node1", "was lost: silence");
  EXPECT_TRUE(two.job.is_waiting_for(1));
  two.job.machine_stopped(0);
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "restart 15"));
  two.job.machine_joined(1, "node1");
  EXPECT_FALSE(two.job.is_waiting_for(1));
  two.wait_until_started(2);
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "restart 15", "start 1"));
  EXPECT_THAT(two.second.log, ElementsAre("start 0", "start 1"));
  // No restart is left.
  two.job.machine_lost(1, "node1", "was lost: silence");
  two.job.machine_stopped(0);
  EXPECT_EQ(two.first.log.back(), "end 1");
}

TEST(Job, EndsWithoutTheMachineThatWasLost) {
  TwoMachines two;
  two.job.machine_lost(1, "node1", "was lost: silence");
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "stop 15"));
  two.job.machine_stopped(0);
  EXPECT_EQ(two.first.log.back(), "end 1");
  EXPECT_THAT(two.first.summary, HasSubstr("machine 1 (node1) was lost"));
  EXPECT_THAT(two.second.log, ElementsAre("start 0"));
}

TEST(Job, ContinuesWhenAMachineIsLostWhileStopping) {
  TwoMachines two;
  two.job.machine_failed(0, {0, "node0", 9, "exit code 9", {}});
  two.job.machine_stopped(0);
  two.job.machine_lost(1, "node1", "was lost");
  EXPECT_EQ(two.first.log.back(), "end 9");
}

TEST(Job, IsInterruptedOnce) {
  TwoMachines two(3);
  two.job.interrupt(SIGINT, "node0", 2);
  two.job.interrupt(SIGTERM, "node1", 2);
  two.job.machine_failed(0, {0, "node0", 130, "signal 2", {}});
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  EXPECT_THAT(two.second.log, ElementsAre("start 0", "request 2", "end 130"));
}

TEST(Job, ReportsAProgramThatCannotStartAsACommandThatWasWrong) {
  TwoMachines two(3);
  two.job.machine_cannot_start(1, "[launch] no such program");
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  EXPECT_EQ(two.first.log.back(), "end 2");
}

constexpr ExitSummary kPreempted{true, true};
const FailureReport kLeft{1, "node1", kExitPreempted, "exit code 75", {}};
const FailureReport kBroke{0, "node0", 1, "exit code 1", {}};

TEST(Job, RestartsPreemptedWorkersWithoutCounting) {
  TwoMachines two;
  for (int round = 1; round < 3; ++round) {
    two.job.machine_failed(1, kLeft);
    // Failures caused by a departure are its consequences.
    two.job.machine_failed(0, kBroke);
    two.job.machine_stopped(0, kPreempted);
    two.job.machine_stopped(1, kPreempted);
    two.wait_until_started(static_cast<size_t>(2 * round + 1));
  }
  EXPECT_THAT(
      two.second.log,
      ElementsAre("start 0", "restart 10", "start 1", "restart 10", "start 2"));
  two.job.machine_failed(0, kBroke);
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  EXPECT_EQ(two.first.log.back(), "end 1");
}

TEST(Job, KeepsTheBudgetOfRestartsApartFromPreemptions) {
  TwoMachines two(1);
  two.job.machine_failed(1, kLeft);
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  two.wait_until_started(3);
  two.job.machine_failed(0, kBroke);
  EXPECT_EQ(two.second.log.back(), "restart 15");
  two.job.machine_stopped(0);
  two.job.machine_stopped(1);
  two.wait_until_started(5);
  two.job.machine_failed(0, kBroke);
  EXPECT_EQ(two.second.log.back(), "stop 15");
}

TEST(Job, PassesThePreemptionOnIfAllHaveSaved) {
  const auto code = [](int signal, ExitSummary first, ExitSummary second) {
    TwoMachines two;
    two.job.interrupt(signal, "node0", 2);
    two.job.machine_stopped(0, first);
    two.job.machine_stopped(1, second);
    return two.second.log.back();
  };
  EXPECT_EQ(code(SIGTERM, kPreempted, kPreempted), "end 75");
  // A worker that had finished has nothing to resume.
  EXPECT_EQ(code(SIGTERM, kPreempted, {}), "end 75");
  EXPECT_EQ(code(SIGTERM, {}, {}), "end 143");
  EXPECT_EQ(code(SIGTERM, kPreempted, {true, false}), "end 143");
  EXPECT_EQ(code(SIGTERM, kPreempted, {false, false}), "end 143");
  EXPECT_EQ(code(SIGINT, kPreempted, kPreempted), "end 130");
  TwoMachines two;
  two.job.interrupt(SIGTERM, "node0", 2);
  two.job.machine_stopped(0, kPreempted);
  two.job.machine_lost(1, "node1", "was lost");
  EXPECT_EQ(two.first.log.back(), "end 143");
}

TEST(Job, TellsWorkersThatWereOnlyAskedToLeave) {
  TwoMachines two;
  two.job.machine_failed(1, kLeft);
  two.job.interrupt(SIGTERM, "node0", 2);
  EXPECT_THAT(
      two.second.log, ElementsAre("start 0", "restart 10", "request 15"));
  two.job.machine_stopped(0, kPreempted);
  two.job.machine_stopped(1, kPreempted);
  EXPECT_EQ(two.second.log.back(), "end 75");
}

TEST(Job, TellsThemAlsoWhereAMachineWasLostBetween) {
  TwoMachines two(1);
  two.job.machine_failed(1, kLeft);
  two.job.machine_lost(1, "node1", "was lost");
  two.job.interrupt(SIGINT, "node0", 2);
  EXPECT_THAT(two.first.log, ElementsAre("start 0", "restart 10", "request 2"));
  two.job.machine_stopped(0);
  EXPECT_EQ(two.first.log.back(), "end 130");
}

/// Indices for three machines, of which two are enough.
struct ElasticMachines {
  explicit ElasticMachines(
      const std::vector<size_t>& absent = {},
      int max_restarts = 0,
      int return_limit = 30)
      : job(loop,
            {&machines[0], &machines[1], &machines[2]},
            {.max_restarts = max_restarts,
             .return_limit = std::chrono::seconds(return_limit),
             .least_machines = 2},
            [this](const std::string& line) { said += line + "\n"; }) {
    job.start(absent);
  }
  std::vector<std::string>& log(size_t machine) {
    return machines[machine].log;
  }
  /// Of machine 0, during the pauses before restarts.
  void wait_for_orders(size_t count) {
    const std::function<void()> look = [&] {
      if (log(0).size() >= count) {
        loop.stop();
      } else {
        loop.after(std::chrono::milliseconds(5), look);
      }
    };
    look();
    loop.run();
  }
  EventLoop loop;
  RecordingMachine machines[3];
  std::string said;
  Job job;
};

TEST(ElasticJob, ContinuesWithoutALostMachine) {
  ElasticMachines three;
  three.job.machine_lost(1, "node1", "was lost: silence");
  EXPECT_THAT(three.said, HasSubstr("restarting all processes on 2 machines"));
  three.job.machine_stopped(0);
  EXPECT_THAT(three.log(0), ElementsAre("start 0", "restart 15"));
  three.job.machine_stopped(2);
  three.wait_for_orders(3);
  EXPECT_THAT(three.log(0), ElementsAre("start 0", "restart 15", "start 1"));
  EXPECT_THAT(three.log(1), ElementsAre("start 0"));
  EXPECT_FALSE(three.job.is_here(1));
  three.job.machine_finished(0);
  three.job.machine_finished(2);
  EXPECT_EQ(three.log(0).back(), "end 0");
  EXPECT_THAT(three.log(1), ElementsAre("start 0"));
}

TEST(ElasticJob, AsksTheWorkersToLeaveForANewMachine) {
  ElasticMachines three({2});
  EXPECT_THAT(three.log(2), IsEmpty());
  three.job.machine_joined(2, "node2");
  EXPECT_THAT(three.log(0), ElementsAre("start 0", "restart 10"));
  three.job.machine_failed(0, kLeft); // as requested
  for (const size_t machine : {2, 0, 1}) {
    three.job.machine_stopped(machine, kPreempted);
  }
  three.wait_for_orders(3);
  EXPECT_THAT(three.log(2), ElementsAre("restart 10", "start 1"));
}

TEST(ElasticJob, LetsANewMachineWaitIfTheJobIsAboutToEnd) {
  ElasticMachines three({2});
  three.job.machine_finished(1);
  three.job.machine_joined(2, "node2");
  three.job.machine_finished(0);
  for (const size_t machine : {0, 1}) {
    EXPECT_THAT(three.log(machine), ElementsAre("start 0", "end 0"));
  }
  EXPECT_THAT(three.log(2), ElementsAre("end 0"));
}

TEST(ElasticJob, IsNotFailedByTheConsequencesOfALoss) {
  for (const int max_restarts : {0, 1}) {
    ElasticMachines three({}, max_restarts);
    three.job.machine_failed(0, kBroke);
    three.job.machine_stopped(0);
    three.job.machine_stopped(2);
    three.job.machine_lost(1, "node1", "was lost: closed");
    three.wait_for_orders(3);
    EXPECT_EQ(three.log(0).back(), "start 1");
    // The budget is unchanged.
    three.job.machine_failed(0, kBroke);
    EXPECT_EQ(
        three.log(0).back(), max_restarts == 0 ? "stop 15" : "restart 15");
  }
}

TEST(ElasticJob, CountsAFailureAfterWhichAllAnswer) {
  ElasticMachines three;
  three.job.machine_failed(0, kBroke);
  three.job.machine_stopped(1);
  three.job.machine_lost(1, "node1", "was lost: closed");
  three.job.machine_stopped(0);
  three.job.machine_stopped(2);
  EXPECT_EQ(three.log(0).back(), "end 1");
}

TEST(ElasticJob, WaitsBelowItsMinimumAndThenEnds) {
  ElasticMachines three({2}, 0, 1);
  three.job.machine_lost(1, "node1", "was lost: silence");
  three.job.machine_stopped(0);
  EXPECT_THAT(three.said, HasSubstr("1 of at least 2 have joined"));
  three.wait_for_orders(3);
  EXPECT_EQ(three.log(0).back(), "stop 15");
  three.job.machine_stopped(0);
  EXPECT_EQ(three.log(0).back(), "end 1");
  EXPECT_THAT(
      three.machines[0].summary, HasSubstr("no machine joined within 1 s"));
}

TEST(ElasticJob, StartsAgainWhenEnoughHaveComeBack) {
  ElasticMachines three({2});
  three.job.machine_lost(1, "node1", "was lost: silence");
  three.job.machine_stopped(0);
  three.job.machine_joined(2, "node2");
  three.job.machine_lost(2, "node2", "was lost: closed");
  three.job.machine_joined(1, "node1");
  three.wait_for_orders(3);
  EXPECT_THAT(three.log(0), ElementsAre("start 0", "restart 15", "start 1"));
  EXPECT_THAT(three.log(1), ElementsAre("start 0", "start 1"));
  EXPECT_THAT(three.log(2), IsEmpty());
}

TEST(ElasticJob, LetsAMachineLeaveWithoutASecondOrder) {
  ElasticMachines three;
  three.job.machine_leaves(1, "node1", SIGTERM);
  EXPECT_THAT(three.log(1), ElementsAre("start 0"));
  EXPECT_EQ(three.log(0).back(), "restart 15");
  three.job.machine_stopped(0);
  three.job.machine_stopped(2);
  EXPECT_EQ(three.log(0).back(), "restart 15");
  three.job.machine_stopped(1, kPreempted);
  three.job.machine_lost(1, "node1", "was lost: closed");
  three.wait_for_orders(3);
  EXPECT_EQ(three.log(2).back(), "start 1");
  EXPECT_THAT(three.log(1), ElementsAre("start 0"));
}

TEST(ElasticJob, EndsInEveryPhaseIfInterrupted) {
  const auto end_of = [](const std::function<void(ElasticMachines&)>& before) {
    ElasticMachines three({2});
    before(three);
    three.job.interrupt(SIGINT, "node0", 2);
    for (const size_t machine : {0, 1, 2}) {
      three.job.machine_stopped(machine);
    }
    return three.log(0).back();
  };
  EXPECT_EQ(end_of([](auto&) {}), "end 130");
  EXPECT_EQ(
      end_of([](auto& three) { three.job.machine_joined(2, "node2"); }),
      "end 130");
  EXPECT_EQ(
      end_of([](auto& three) {
        three.job.machine_lost(1, "node1", "was lost");
        three.job.machine_stopped(0);
      }),
      "end 130");
  EXPECT_EQ(
      end_of(
          [](auto& three) { three.job.machine_leaves(1, "node1", SIGTERM); }),
      "end 130");
}

TEST(Diagnosis, JudgesFiguresAndNamesTheRemedy) {
  MemoryFigures memory;
  EXPECT_EQ(check_shared_memory(memory).result, CheckResult::kFailed);
  memory.shared_free_bytes = 64 << 20;
  EXPECT_THAT(check_shared_memory(memory).remedy, HasSubstr("--shm-size"));
  memory.shared_free_bytes = int64_t{8} << 30;
  EXPECT_EQ(check_shared_memory(memory).result, CheckResult::kPassed);
  EXPECT_THAT(check_file_limits({1024, 524288}).remedy, HasSubstr("524288"));
  EXPECT_EQ(check_file_limits({-1, -1}).result, CheckResult::kPassed);
  const GpuKind& kind = gpu_kinds().front();
  const Gpu alone{.index = 0};
  const Gpu first{.index = 0, .peers = {1}};
  const Gpu second{.index = 1, .peers = {0}};
  EXPECT_EQ(check_peer_access({alone}, kind).result, CheckResult::kPassed);
  EXPECT_EQ(
      check_peer_access({first, second}, kind).result, CheckResult::kPassed);
  EXPECT_THAT(
      check_peer_access({alone, second}, kind).what,
      HasSubstr("GPU 0 cannot read the memory of GPU 1"));
  EXPECT_EQ(check_clock("b", 0.4).result, CheckResult::kPassed);
  EXPECT_EQ(check_clock("b", -3.0).result, CheckResult::kWarning);
  EXPECT_EQ(
      check_connection("b", 22, ECONNREFUSED).result, CheckResult::kFailed);
  EXPECT_EQ(
      check_connection("b", 29500, ECONNREFUSED).result, CheckResult::kPassed);
  EXPECT_EQ(
      check_connection("b", 29500, ETIMEDOUT).result, CheckResult::kFailed);
}

} // namespace
} // namespace accelerate
