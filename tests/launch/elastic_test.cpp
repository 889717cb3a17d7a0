// SPDX-License-Identifier: Apache-2.0
// Jobs that shrink and grow, and workers that exit to be restarted.
#include <gmock/gmock.h>
#include <signal.h>

#include "core/base/exit_codes.h"
#include "launcher/launch/supervise/process_tree.h"
#include "support/cluster.h"
#include "support/program.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr auto kLong = 60s;

/// Workers that behave like the library's: at SIGUSR1 and SIGTERM they save (a
/// file) and exit with the preempted code. Each creates a file RANK.WORLD_SIZE
/// when it is ready; if there is a file `go`, it exits with 0.
class Preemption : public ::testing::Test {
 protected:
  std::string script(const std::string& before = "") const {
    const std::string folder = folder_.path();
    return before + "trap 'touch " + folder +
           "/saved_$RANK.$WORLD_SIZE; exit 75' USR1 TERM; touch " + folder +
           "/$RANK.$WORLD_SIZE; touch " + folder +
           "/attempt_$TORCHELASTIC_RESTART_COUNT.$RANK; while [ ! -e " +
           folder +
           "/go ]; do sleep 0.05; done; echo rank $RANK of "
           "$WORLD_SIZE group $GROUP_RANK/$GROUP_WORLD_SIZE attempt "
           "$TORCHELASTIC_RESTART_COUNT is done";
  }
  std::unique_ptr<Subprocess> launch(
      const std::string& program,
      std::vector<std::string> flags = {}) {
    std::vector<std::string> command = {
        kProgram, "launch", "--num_processes", "2"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"sh", "-c", program});
    return std::make_unique<Subprocess>(
        command, std::map<std::string, std::string>{{"TEST_MARK", mark()}});
  }
  std::string mark() const { return folder_.path().filename().string(); }
  bool is_there(const std::string& name) const {
    return std::filesystem::exists(folder_.path() / name);
  }
  /// A file `prefix` + rank + `suffix` for each rank.
  bool wait_for_ranks(
      int count,
      const std::string& prefix,
      const std::string& suffix) const {
    return eventually(
        [&] {
          for (int rank = 0; rank < count; ++rank) {
            if (!is_there(prefix + std::to_string(rank) + suffix)) {
              return false;
            }
          }
          return true;
        },
        kLong);
  }
  bool wait_for_world(int size) const {
    return wait_for_ranks(size, "", "." + std::to_string(size));
  }
  bool wait_for_attempt(int attempt, int size) const {
    return wait_for_ranks(size, "attempt_" + std::to_string(attempt) + ".", "");
  }
  bool wait_for_words(const Subprocess& launcher, const char* words) const {
    return eventually(
        [&] { return launcher.err().find(words) != std::string::npos; }, kLong);
  }
  std::vector<pid_t> left() const {
    const std::string variable = "TEST_MARK=" + mark();
    eventually([&] { return processes_with(variable).empty(); }, 10s);
    return processes_with(variable);
  }

  TempDir folder_;
};

TEST_F(Preemption, StartsAllWorkersAgainThatHaveSaved) {
  auto job = launch(script());
  ASSERT_TRUE(wait_for_attempt(0, 2));
  job->send(SIGUSR1);
  ASSERT_TRUE(wait_for_attempt(1, 2)) << job->err();
  folder_.write("go", "");
  const auto result = job->wait(kLong);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("requested a restart (exit code 75); restarting all "
                    "processes. This does not count towards --max_restarts"),
          Not(HasSubstr("failed with"))));
  EXPECT_THAT(result.out, HasSubstr("rank 0 of 2 group 0/1 attempt 1"));
}

/// Rank 0 exits by itself once the other has its handlers.
std::string leaves_rank_with(
    const TempDir& folder,
    const std::string& handlers) {
  const std::string ready = folder.path() / "ready";
  return "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
         "[ $RANK = 0 ] && { until [ -e " +
         ready + " ]; do sleep 0.05; done; exit 75; }; " + handlers +
         "; touch " + ready + "; while :; do sleep 0.05; done";
}

TEST_F(Preemption, AsksWorkersToLeaveBeforeEndingThem) {
  const std::string saved = folder_.path() / "saved";
  auto job = launch(leaves_rank_with(
      folder_, "trap 'sleep 0.3; touch " + saved + "; exit 75' USR1"));
  EXPECT_EQ(job->wait(kLong).exit_code, 0) << job->err();
  EXPECT_TRUE(is_there("saved")) << job->err();
}

TEST_F(Preemption, IsEnforcedAfterTheGracePeriod) {
  const std::string saved = folder_.path() / "saved";
  auto job = launch(
      leaves_rank_with(
          folder_, "trap : USR1; trap 'touch " + saved + "; exit 75' TERM"),
      {"--grace_seconds", "1"});
  EXPECT_EQ(job->wait(kLong).exit_code, 0) << job->err();
  EXPECT_TRUE(is_there("saved")) << job->err();
}

TEST_F(Preemption, OfTheLauncherIsItsExitCodeIfAllHaveSaved) {
  auto job = launch(script());
  ASSERT_TRUE(wait_for_attempt(0, 2));
  job->send(SIGTERM);
  const auto result = job->wait(kLong);
  EXPECT_EQ(result.exit_code, kExitPreempted) << result.err;
  EXPECT_THAT(
      result.err,
      HasSubstr("Exit code 75: to resume the job, launch it again"));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Preemption, IsAnEndIfOneHasNotSaved) {
  auto job = launch(
      script(
          "[ $RANK = 1 ] && { touch " +
          (folder_.path() / "attempt_0.1").string() + "; exec sleep 61; }; "),
      {"--grace_seconds", "2"});
  ASSERT_TRUE(wait_for_attempt(0, 2));
  job->send(SIGTERM);
  EXPECT_EQ(job->wait(kLong).exit_code, 128 + SIGTERM) << job->err();
}

TEST_F(Preemption, IsNoneAtCtrlC) {
  auto job = launch(script());
  ASSERT_TRUE(wait_for_attempt(0, 2));
  job->send(SIGINT);
  EXPECT_EQ(job->wait(kLong).exit_code, 128 + SIGINT) << job->err();
}

TEST_F(Preemption, DoesNotSpin) {
  auto job = launch(
      "[ $RANK = 1 ] && exec sleep 61; touch " + folder_.path().string() +
          "/attempt_$TORCHELASTIC_RESTART_COUNT.$RANK; exit 75",
      {"--grace_seconds", "2"});
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(wait_for_attempt(4, 1));
  // The pauses: 0.1, 0.2, 0.4 and 0.8 s. The first attempt began before.
  EXPECT_GE(std::chrono::steady_clock::now() - start, 1400ms);
  job->send(SIGTERM);
  EXPECT_EQ(job->wait(kLong).exit_code, 128 + SIGTERM);
}

/// Hosts 0 to 2 on a separate network, two workers on each.
class Elastic : public Preemption {
 protected:
  void SetUp() override {
    const std::string reason = Cluster::why_not();
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
    cluster_ = std::make_unique<Cluster>(3);
  }
  /// The same command on every host, without ranks.
  std::unique_ptr<Subprocess> launch_on(
      int host,
      const std::string& machines,
      const std::string& program,
      std::vector<std::string> flags = {}) {
    const int most = machines.back() - '0';
    std::vector<std::string> command = {
        kProgram,
        "launch",
        "--num_machines",
        machines,
        "--main_process_ip",
        cluster_->address(0),
        "--num_processes",
        std::to_string(2 * most),
        "--heartbeat_seconds",
        "3"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"sh", "-c", program});
    return cluster_->start(
        host,
        command,
        {{"TEST_MARK", mark()}, {"ACCELERATE_JOB_TOKEN", "of this test"}});
  }
  void start_three(
      const std::string& program,
      const std::vector<std::string>& flags = {}) {
    for (int host = 0; host < 3; ++host) {
      launchers_.push_back(launch_on(host, "2:3", program, flags));
    }
  }
  void expect_all_done(const std::vector<size_t>& hosts) {
    folder_.write("go", "");
    for (const size_t host : hosts) {
      EXPECT_EQ(launchers_[host]->wait(kLong).exit_code, 0)
          << host << ":\n"
          << launchers_[host]->err();
    }
    EXPECT_THAT(left(), IsEmpty());
  }

  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Subprocess>> launchers_;
};

TEST_F(Elastic, StartsAtOnceIfAllHaveJoined) {
  start_three(script());
  ASSERT_TRUE(wait_for_world(6)) << launchers_[0]->err();
  EXPECT_THAT(launchers_[0]->err(), HasSubstr("      2  node"));
  expect_all_done({0, 1, 2});
}

TEST_F(Elastic, ContinuesWithoutAMachineWhoseLauncherWasKilled) {
  start_three(script());
  ASSERT_TRUE(wait_for_world(6));
  launchers_[1]->send(SIGKILL);
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  expect_all_done({0, 2});
  EXPECT_THAT(
      launchers_[0]->err(),
      AllOf(
          HasSubstr("(node1) was lost"),
          HasSubstr("restarting all processes on 2 machines")));
  EXPECT_THAT(
      launchers_[2]->out(), HasSubstr("rank 2 of 4 group 1/2 attempt 1"));
}

// The workers of the others notice first, as they do when NCCL's connections
// break, and fail.
TEST_F(Elastic, DoesNotFailBecauseOfALostMachine) {
  start_three(
      "trap 'exit 75' USR1 TERM; touch " + folder_.path().string() +
          "/$RANK.$WORLD_SIZE; [ $WORLD_SIZE = 6 ] && { while [ ! -e " +
          folder_.path().string() +
          "/broken ]; do sleep 0.05; done; [ $GROUP_RANK "
          "= 0 ] && exit 1; }; while [ ! -e " +
          folder_.path().string() + "/go ]; do sleep 0.05; done",
      {"--join_timeout", "10"});
  ASSERT_TRUE(wait_for_world(6));
  cluster_->cut(1);
  folder_.write("broken", "");
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  EXPECT_EQ(launchers_[1]->wait(kLong).exit_code, kExitFailure);
  EXPECT_THAT(launchers_[1]->err(), HasSubstr("did not return ("));
  expect_all_done({0, 2});
}

TEST_F(Elastic, ReadmitsAMachineAfterACutConnection) {
  start_three(script());
  ASSERT_TRUE(wait_for_world(6));
  cluster_->cut(2);
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  cluster_->mend(2);
  ASSERT_TRUE(wait_for_attempt(2, 6)) << launchers_[0]->err();
  // Workers that were asked to make room had saved before.
  EXPECT_TRUE(is_there("saved_0.4") && is_there("saved_3.4"));
  expect_all_done({0, 1, 2});
}

TEST_F(Elastic, AcceptsAMachineThatJoinsLater) {
  launchers_.push_back(launch_on(0, "2:3", script()));
  launchers_.push_back(launch_on(1, "2:3", script()));
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  EXPECT_THAT(
      launchers_[0]->err(),
      HasSubstr("machines that have joined: 2 (of 2 to 3)"));
  launchers_.push_back(launch_on(2, "2:3", script()));
  ASSERT_TRUE(wait_for_world(6)) << launchers_[0]->err();
  EXPECT_TRUE(is_there("saved_0.4") && is_there("saved_3.4"));
  EXPECT_THAT(launchers_[0]->err(), HasSubstr("(node2) has joined"));
  expect_all_done({0, 1, 2});
}

TEST_F(Elastic, AcceptsTwoMachinesAtOnce) {
  launchers_.push_back(launch_on(0, "1:3", script()));
  ASSERT_TRUE(wait_for_world(2)) << launchers_[0]->err();
  launchers_.push_back(launch_on(1, "1:3", script()));
  launchers_.push_back(launch_on(2, "1:3", script()));
  ASSERT_TRUE(wait_for_world(6)) << launchers_[0]->err();
  expect_all_done({0, 1, 2});
}

TEST_F(Elastic, LosesOneMachineWhileAnotherJoins) {
  const std::string slow =
      "[ $WORLD_SIZE = 2 ] && { trap 'sleep 1; exit 75' USR1; touch " +
      folder_.path().string() + "/0.2 " + folder_.path().string() +
      "/1.2; while :; do sleep 0.05; done; }; ";
  launchers_.push_back(launch_on(0, "1:3", script(slow)));
  ASSERT_TRUE(wait_for_world(2));
  launchers_.push_back(launch_on(1, "1:3", script(slow)));
  ASSERT_TRUE(wait_for_words(*launchers_[0], "has joined"));
  launchers_.push_back(launch_on(2, "1:3", script(slow)));
  launchers_[1]->send(SIGKILL);
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  expect_all_done({0, 2});
}

TEST_F(Elastic, ContinuesWhenAProviderTakesAMachine) {
  start_three(script());
  ASSERT_TRUE(wait_for_world(6));
  launchers_[2]->send(SIGTERM);
  EXPECT_EQ(launchers_[2]->wait(kLong).exit_code, kExitPreempted)
      << launchers_[2]->err();
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  EXPECT_THAT(
      launchers_[0]->err(), HasSubstr("received SIGTERM and is leaving"));
  expect_all_done({0, 1});
}

TEST_F(Elastic, WaitsBelowItsMinimumForAMachine) {
  launchers_.push_back(launch_on(0, "2:3", script()));
  launchers_.push_back(launch_on(1, "2:3", script()));
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  launchers_[1]->send(SIGKILL);
  ASSERT_TRUE(wait_for_words(*launchers_[0], "1 of at least 2 have joined"));
  launchers_.push_back(launch_on(2, "2:3", script()));
  ASSERT_TRUE(wait_for_attempt(1, 4)) << launchers_[0]->err();
  expect_all_done({0, 2});
}

TEST_F(Elastic, EndsIfTooFewAreLeft) {
  const std::vector<std::string> flags = {"--join_timeout", "8"};
  for (int host = 0; host < 3; ++host) {
    launchers_.push_back(launch_on(host, "3:4", script(), flags));
  }
  ASSERT_TRUE(wait_for_world(6)) << launchers_[0]->err();
  launchers_[2]->send(SIGKILL);
  for (const size_t host : {0, 1}) {
    const auto result = launchers_[host]->wait(kLong);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(
        result.err,
        HasSubstr("no machine joined within 8 s: 2 of at least 3 have joined"));
  }
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Elastic, EndsWithMachineZero) {
  start_three(script());
  ASSERT_TRUE(wait_for_world(6));
  launchers_[0]->send(SIGKILL);
  for (const size_t host : {1, 2}) {
    const auto result = launchers_[host]->wait(kLong);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(
        result.err,
        HasSubstr("did not return (Connection refused), so the job is over"));
  }
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Elastic, RejectsAMachineIfTheJobIsFull) {
  for (int host = 0; host < 2; ++host) {
    launchers_.push_back(launch_on(host, "1:2", script()));
  }
  ASSERT_TRUE(wait_for_world(4));
  auto third = launch_on(2, "1:2", script());
  EXPECT_EQ(third->wait(kLong).exit_code, kExitUsage);
  EXPECT_THAT(
      third->err(),
      HasSubstr("rejected this machine: all 2 machines that --num_machines "
                "allows have already joined"));
  expect_all_done({0, 1});
}

struct Interruption {
  size_t host;
  /// What the job is doing.
  const char* phase;
};

class ElasticInterrupted : public Elastic,
                           public ::testing::WithParamInterface<Interruption> {
};

TEST_P(ElasticInterrupted, EndsEverywhere) {
  const auto [host, phase_name] = GetParam();
  const std::string phase = phase_name;
  const std::string stubborn = "trap 'exit 75' TERM INT; trap : USR1; touch " +
                               folder_.path().string() +
                               "/$RANK.$WORLD_SIZE; while :; do sleep 0.05; "
                               "done";
  launchers_.push_back(launch_on(0, "2:3", stubborn));
  launchers_.push_back(launch_on(1, "2:3", stubborn));
  if (phase == "gathering") {
    ASSERT_TRUE(wait_for_words(*launchers_[0], "machines that have joined"));
  } else {
    ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  }
  if (phase == "welcoming") {
    launchers_.push_back(launch_on(2, "2:3", stubborn));
    ASSERT_TRUE(wait_for_words(*launchers_[0], "has joined"));
  } else if (phase == "waiting") {
    launchers_[1 - host]->send(SIGKILL);
    ASSERT_TRUE(wait_for_words(
        *launchers_[host],
        host == 0 ? "at least 2 machines are needed" : "is lost"));
  }
  launchers_[host]->send(SIGINT);
  for (auto& launcher : launchers_) {
    // A machine that has lost machine 0 may give up before it receives the
    // order.
    EXPECT_THAT(
        launcher->wait(20s).exit_code,
        AnyOf(128 + SIGINT, 128 + SIGKILL, kExitFailure))
        << launcher->err();
  }
  EXPECT_THAT(left(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Phases,
    ElasticInterrupted,
    ::testing::Values(
        Interruption{0, "gathering"},
        Interruption{1, "gathering"},
        Interruption{0, "running"},
        Interruption{1, "running"},
        Interruption{0, "welcoming"},
        Interruption{1, "welcoming"},
        Interruption{0, "waiting"},
        Interruption{1, "waiting"}));

/// A job with a fixed number of machines: two, with two workers each.
class PreemptedMachines : public Elastic {
 protected:
  void start_two(const std::string& program) {
    for (int host = 0; host < 2; ++host) {
      launchers_.push_back(launch_on(
          host, "2", program, {"--machine_rank", std::to_string(host)}));
    }
  }
};

class SignalToOneMachine : public PreemptedMachines,
                           public ::testing::WithParamInterface<size_t> {};

TEST_P(SignalToOneMachine, ReachesTheWorkersOfBothOnce) {
  const std::string log = folder_.path().string() + "/log_$RANK";
  start_two(
      "trap 'echo USR1 >> " + log + "' USR1; trap 'echo USR2 >> " + log +
      "; exit 0' USR2; touch " + folder_.path().string() +
      "/$RANK.$WORLD_SIZE; while :; do sleep 0.05; done");
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  launchers_[GetParam()]->send(SIGUSR1);
  const auto log_of = [&](int rank) {
    return read_file(folder_.path() / ("log_" + std::to_string(rank)));
  };
  ASSERT_TRUE(wait_for_ranks(4, "log_", ""));
  // Like a scheduler, which signals every machine.
  for (auto& launcher : launchers_) {
    launcher->send(SIGUSR2);
  }
  for (auto& launcher : launchers_) {
    EXPECT_EQ(launcher->wait(kLong).exit_code, 0) << launcher->err();
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(log_of(rank), "USR1\nUSR2\n") << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, SignalToOneMachine, ::testing::Values(0, 1));

TEST_F(PreemptedMachines, StartAgainTogether) {
  start_two(script());
  ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
  launchers_[1]->send(SIGUSR1);
  ASSERT_TRUE(wait_for_attempt(1, 4)) << launchers_[0]->err();
  expect_all_done({0, 1});
  EXPECT_TRUE(is_there("saved_0.4") && is_there("saved_3.4"));
}

TEST_F(PreemptedMachines, PassTheirCodeOn) {
  // A scheduler signals both.
  const std::vector<size_t> cases[] = {{0}, {1}, {0, 1}};
  for (const auto& asked : cases) {
    launchers_.clear();
    start_two(script());
    ASSERT_TRUE(wait_for_world(4)) << launchers_[0]->err();
    for (const size_t host : asked) {
      launchers_[host]->send(SIGTERM);
    }
    for (auto& launcher : launchers_) {
      EXPECT_EQ(launcher->wait(kLong).exit_code, kExitPreempted)
          << launcher->err();
    }
    for (int rank = 0; rank < 4; ++rank) {
      std::filesystem::remove(folder_.path() / (std::to_string(rank) + ".4"));
    }
  }
}

} // namespace
} // namespace accelerate::testing
