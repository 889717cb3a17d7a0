// SPDX-License-Identifier: Apache-2.0
// Launchers on several hosts, each a network namespace with its own name.
#include <gmock/gmock.h>
#include <signal.h>

#include <thread>

#include "launcher/launch/supervise/process_tree.h"
#include "support/cluster.h"
#include "support/program.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;

class Machines : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = Cluster::why_not();
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }

  void make_hosts(int count) { cluster_ = std::make_unique<Cluster>(count); }

  /// The launcher of machine `rank` on host `rank`, two workers per machine.
  std::unique_ptr<Subprocess> launch(
      int machines,
      int rank,
      const std::string& script,
      std::vector<std::string> flags = {},
      std::map<std::string, std::string> variables = {}) {
    std::vector<std::string> command = {
        kProgram,
        "launch",
        "--num_machines",
        std::to_string(machines),
        "--machine_rank",
        std::to_string(rank),
        "--main_process_ip",
        cluster_->address(0),
        "--num_processes",
        std::to_string(2 * machines)};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"sh", "-c", script});
    variables["TEST_MARK"] = mark();
    if (!variables.contains("ACCELERATE_JOB_TOKEN_FILE")) {
      variables.try_emplace("ACCELERATE_JOB_TOKEN", "of this test");
    }
    return cluster_->start(rank, command, variables);
  }

  std::string mark() const { return folder_.path().filename().string(); }
  std::string file(const std::string& name) const {
    return folder_.path() / name;
  }
  std::vector<pid_t> left() const {
    const std::string variable = "TEST_MARK=" + mark();
    eventually([&] { return processes_with(variable).empty(); }, 5s);
    return processes_with(variable);
  }
  /// A script whose workers report that they run, then wait.
  std::string waiting_script() const {
    return "touch " + folder_.path().string() + "/$RANK; sleep 61; true";
  }
  /// As above, until a file exists.
  std::string waiting_script_until(const std::string& path) const {
    return "touch " + folder_.path().string() + "/$RANK; while [ ! -e " + path +
           " ]; do sleep 0.1; done; ";
  }
  /// Waits until machine 0 can be joined.
  bool wait_for_port() const {
    return eventually([&] {
      return !cluster_->start(0, {"ss", "-Hltn", "sport = :29500"})
                  ->wait(5s)
                  .out.empty();
    });
  }
  bool wait_for_words(const Subprocess& launcher, const char* words) const {
    return eventually(
        [&] { return launcher.err().find(words) != std::string::npos; }, 30s);
  }
  bool wait_for_ranks(int count) const {
    return eventually([&] {
      for (int rank = 0; rank < count; ++rank) {
        if (!std::filesystem::exists(file(std::to_string(rank)))) {
          return false;
        }
      }
      return true;
    });
  }

  TempDir folder_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(Machines, TwoConnectAndRunEveryRank) {
  make_hosts(2);
  const std::string script =
      "echo rank $RANK/$WORLD_SIZE local $LOCAL_RANK group $GROUP_RANK at "
      "$MASTER_ADDR on $(hostname)";
  auto first = launch(2, 0, script);
  auto second = launch(2, 1, script);
  const auto result = first->wait(20s);
  const auto other = second->wait(20s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("rank 0/4 local 0 group 0 at 10.77.0.1 on node0"),
          HasSubstr("rank 1/4 local 1 group 0")));
  EXPECT_THAT(
      other.out,
      AllOf(
          HasSubstr("[rank 2] rank 2/4 local 0 group 1 at 10.77.0.1 on node1"),
          HasSubstr("rank 3/4 local 1 group 1")));
  for (const auto& err : {result.err, other.err}) {
    EXPECT_THAT(err, HasSubstr("machine  host   ranks      devices"));
    EXPECT_THAT(err, HasSubstr("      0  node0  0-1        CPU"));
    EXPECT_THAT(err, HasSubstr("      1  node1  2-3        CPU"));
  }
}

TEST_F(Machines, AFailureOnOneOfThreeMachinesEndsAllWorkers) {
  make_hosts(3);
  const std::string script =
      "if [ $RANK = 3 ]; then sleep 0.3; echo no memory >&2; exit 7; fi; "
      "setsid sleep 61 & sleep 61";
  std::vector<std::unique_ptr<Subprocess>> launchers;
  for (int rank = 0; rank < 3; ++rank) {
    launchers.push_back(launch(3, rank, script));
  }
  for (auto& launcher : launchers) {
    const auto result = launcher->wait(15s);
    EXPECT_EQ(result.exit_code, 7) << result.err;
    EXPECT_THAT(
        result.err,
        HasSubstr("[launch] Rank 3 on node1 failed with exit code 7; the "
                  "last lines of its stderr:\n    no memory"));
  }
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Machines, RestartTogether) {
  make_hosts(2);
  const std::string script =
      "echo r$RANK c$TORCHELASTIC_RESTART_COUNT; "
      "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi; "
      "if [ $RANK = 2 ]; then sleep 0.2; exit 3; fi; sleep 61";
  auto first = launch(2, 0, script, {"--max_restarts", "1"});
  auto second = launch(2, 1, script, {"--max_restarts", "1"});
  const auto result = first->wait(20s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(second->wait(20s).exit_code, 0) << second->err();
  EXPECT_THAT(result.out, AllOf(HasSubstr("r0 c0"), HasSubstr("r0 c1")));
}

const std::vector<std::string> kShortPatience = {"--heartbeat_seconds", "3"};

TEST_F(Machines, NoticeACutLink) {
  make_hosts(2);
  auto first = launch(2, 0, waiting_script(), kShortPatience);
  auto second = launch(2, 1, waiting_script(), kShortPatience);
  ASSERT_TRUE(wait_for_ranks(4));
  cluster_->cut(1);
  const auto result = first->wait(30s);
  const auto other = second->wait(30s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("machine 1 (node1) was lost"),
          HasSubstr("nothing answers, so the machine or the network is down")));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("is lost"));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Machines, NoticeADroppedHostAmongThree) {
  make_hosts(3);
  std::vector<std::unique_ptr<Subprocess>> launchers;
  for (int rank = 0; rank < 3; ++rank) {
    launchers.push_back(launch(3, rank, waiting_script(), kShortPatience));
  }
  ASSERT_TRUE(wait_for_ranks(6));
  // A machine without power does not say goodbye: first the cable, then the
  // rest.
  cluster_->cut(2);
  launchers[2]->send(SIGKILL);
  for (const size_t i : {0U, 1U}) {
    const auto result = launchers[i]->wait(30s);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("machine 2 (node2) was lost"));
  }
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Machines, SurviveAShortCut) {
  make_hosts(2);
  const std::string script =
      waiting_script_until(file("go")) + "echo rank $RANK is done";
  auto first = launch(2, 0, script);
  auto second = launch(2, 1, script);
  ASSERT_TRUE(wait_for_ranks(4));
  cluster_->cut(1);
  EXPECT_TRUE(wait_for_words(
      *first, "machine 1 (node1) has been silent for 5 s: nothing answers"));
  EXPECT_TRUE(wait_for_words(*second, "has been silent for 5 s"));
  cluster_->mend(1);
  EXPECT_TRUE(wait_for_words(*first, "machine 1 (node1) is back after"));
  EXPECT_TRUE(wait_for_words(*second, "is back after"));
  folder_.write("go", "");
  EXPECT_EQ(first->wait(20s).exit_code, 0) << first->err();
  EXPECT_EQ(second->wait(20s).exit_code, 0) << second->err();
}

TEST_F(Machines, TellASuspendedLauncherFromADeadMachine) {
  make_hosts(2);
  const std::string script = waiting_script_until(file("go"));
  auto first = launch(2, 0, script);
  auto second = launch(2, 1, script);
  ASSERT_TRUE(wait_for_ranks(4));
  const std::string parent = std::to_string(second->pid());
  ASSERT_EQ(shell("pkill -STOP -P " + parent), 0);
  EXPECT_TRUE(wait_for_words(
      *first,
      "machine 1 (node1) has been silent for 5 s: its operating system "
      "answers, but its launcher does not"));
  ASSERT_EQ(shell("pkill -CONT -P " + parent), 0);
  EXPECT_TRUE(wait_for_words(*first, "machine 1 (node1) is back after"));
  folder_.write("go", "");
  EXPECT_EQ(first->wait(20s).exit_code, 0) << first->err();
  EXPECT_EQ(second->wait(20s).exit_code, 0) << second->err();
}

/// Waits in the first attempt, succeeds in the second.
std::string second_time_lucky(const std::string& folder) {
  return "touch " + folder +
         "/$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo rank $RANK of "
         "$WORLD_SIZE again && exit 0; sleep 61";
}

TEST_F(Machines, StartAgainWhenACutLinkIsMended) {
  make_hosts(2);
  const std::string script = second_time_lucky(folder_.path());
  const std::vector<std::string> flags = {
      "--max_restarts", "1", "--heartbeat_seconds", "3"};
  auto first = launch(2, 0, script, flags);
  auto second = launch(2, 1, script, flags);
  ASSERT_TRUE(wait_for_ranks(4));
  cluster_->cut(1);
  EXPECT_TRUE(wait_for_words(*first, "machine 1 (node1) was lost"));
  EXPECT_TRUE(wait_for_words(*second, "rejoining"));
  cluster_->mend(1);
  EXPECT_EQ(first->wait(40s).exit_code, 0) << first->err();
  EXPECT_EQ(second->wait(40s).exit_code, 0) << second->err();
  EXPECT_THAT(second->out(), HasSubstr("rank 2 of 4 again"));
}

TEST_F(Machines, DoNotWaitForALostOneForever) {
  make_hosts(2);
  const std::vector<std::string> flags = {
      "--max_restarts", "1", "--join_timeout", "3"};
  auto first = launch(2, 0, waiting_script(), flags);
  auto second = launch(2, 1, waiting_script(), flags);
  ASSERT_TRUE(wait_for_ranks(4));
  second->send(SIGKILL);
  EXPECT_EQ(first->wait(30s).exit_code, 1);
  EXPECT_THAT(
      first->err(),
      AllOf(
          HasSubstr("machine 1 (node1) was lost"),
          HasSubstr("waiting 3 s for it to return")));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Machines, AskForATokenIfOthersCouldJoin) {
  make_hosts(2);
  for (const int rank : {0, 1}) {
    auto launcher =
        launch(2, rank, "exit 0", {}, {{"ACCELERATE_JOB_TOKEN", ""}});
    EXPECT_EQ(launcher->wait(10s).exit_code, 2);
    EXPECT_THAT(launcher->err(), HasSubstr("without a job token"));
  }
}

// A part of the file system that one machine does not have.
TEST_F(Machines, AreCheckedBeforeTheWorkersStart) {
  make_hosts(2);
  const auto program = folder_.write("train", "#!/bin/sh\ntouch $0.$RANK\n");
  std::filesystem::permissions(program, std::filesystem::perms(0755));
  const auto start = [&](int rank, const std::string& path) {
    return cluster_->start(
        rank,
        {kProgram,
         "launch",
         "--check",
         "--num_machines",
         "2",
         "--machine_rank",
         std::to_string(rank),
         "--main_process_ip",
         "10.77.0.1",
         "--num_processes",
         "2",
         path},
        {{"ACCELERATE_JOB_TOKEN", "of this test"}});
  };
  auto first = start(0, program);
  auto second = start(1, "/missing/train");
  for (auto* launcher : {first.get(), second.get()}) {
    EXPECT_EQ(launcher->wait(20s).exit_code, 2);
    EXPECT_THAT(
        launcher->err(),
        AllOf(
            HasSubstr("machine 1 (node1): the program /missing/train cannot be "
                      "executed"),
            HasSubstr("--check found problems, so nothing was started")));
  }
  EXPECT_FALSE(std::filesystem::exists(program.string() + ".0"));
  auto third = start(0, program);
  auto fourth = start(1, program);
  EXPECT_EQ(third->wait(20s).exit_code, 0) << third->err();
  EXPECT_EQ(fourth->wait(20s).exit_code, 0) << fourth->err();
  EXPECT_TRUE(std::filesystem::exists(program.string() + ".1"));
}

// As mpirun with one task per machine starts them.
TEST_F(Machines, ShareATokenOfTheirOwnUnderMpi) {
  make_hosts(2);
  std::vector<std::unique_ptr<Subprocess>> launchers;
  for (const int rank : {0, 1}) {
    launchers.push_back(cluster_->start(
        rank,
        {kProgram, "launch", "--num_processes", "2", "true"},
        {{"HOME", folder_.path()},
         {"MASTER_ADDR", "10.77.0.1"},
         {"PMIX_NAMESPACE", mark()},
         {"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
         {"OMPI_COMM_WORLD_SIZE", "2"},
         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
         {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}));
  }
  for (auto& launcher : launchers) {
    EXPECT_EQ(launcher->wait(30s).exit_code, 0) << launcher->err();
  }
  EXPECT_TRUE(std::filesystem::is_empty(file(".cache/accelerate/tokens")));
}

TEST_F(Machines, WaitForAnyLateHost) {
  make_hosts(2);
  for (const int late : {0, 1}) {
    auto early_one = launch(2, 1 - late, "exit 0");
    std::this_thread::sleep_for(1500ms);
    auto late_one = launch(2, late, "exit 0");
    EXPECT_EQ(late_one->wait(10s).exit_code, 0) << late_one->err();
    EXPECT_EQ(early_one->wait(10s).exit_code, 0) << early_one->err();
  }
}

TEST_F(Machines, GiveUpOnOneThatDoesNotJoin) {
  make_hosts(3);
  auto first = launch(3, 0, "exit 0", {"--join_timeout", "2"});
  auto second = launch(3, 1, "exit 0", {"--join_timeout", "20"});
  const auto result = first->wait(10s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      HasSubstr("machine 2 did not join within 2 s (joined: 0 (node0), 1 "
                "(node1)"));
  EXPECT_EQ(second->wait(10s).exit_code, 1);
  EXPECT_THAT(second->err(), HasSubstr("machine 2 did not join"));
}

TEST_F(Machines, ReportAWrongPortOnBothSides) {
  make_hosts(2);
  const std::vector<std::string> wrong = {
      "--join_timeout", "2", "--main_process_port", "29999"};
  auto first = launch(2, 0, "exit 0", {"--join_timeout", "2"});
  auto second = launch(2, 1, "exit 0", wrong);
  EXPECT_EQ(first->wait(10s).exit_code, 1);
  EXPECT_THAT(first->err(), HasSubstr("machine 1 did not join"));
  EXPECT_EQ(second->wait(10s).exit_code, 1);
  EXPECT_THAT(
      second->err(),
      HasSubstr("could not be reached at 10.77.0.1 port 29999 within 2 s "
                "(Connection refused)"));
}

TEST_F(Machines, RestartWhenALostOneIsBack) {
  make_hosts(2);
  const std::string script = waiting_script();
  const std::string again =
      "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { echo r$RANK again; exit 0; "
      "}; " +
      script;
  const std::vector<std::string> flags = {"--max_restarts", "1"};
  auto first = launch(2, 0, again, flags);
  auto second = launch(2, 1, again, flags);
  ASSERT_TRUE(wait_for_ranks(4));
  second->send(SIGKILL);
  second->wait(10s);
  ASSERT_TRUE(eventually(
      [&] {
        return first->err().find("for it to return") != std::string::npos;
      },
      20s));
  auto replacement = launch(2, 1, again, flags);
  const auto result = first->wait(40s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("machine 1 (node1) has rejoined"));
  EXPECT_THAT(result.out, HasSubstr("r0 again"));
  EXPECT_EQ(replacement->wait(20s).exit_code, 0);
  EXPECT_THAT(replacement->out(), HasSubstr("r3 again"));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Machines, RejectAWrongRank) {
  make_hosts(2);
  auto lonely = launch(1, 1, "exit 0");
  EXPECT_EQ(lonely->wait(10s).exit_code, 2);
  EXPECT_THAT(lonely->err(), HasSubstr("machine_rank"));
}

TEST_F(Machines, RejectADuplicateRankAndContinue) {
  make_hosts(3);
  auto first = launch(3, 0, "exit 0");
  auto second = launch(3, 1, "exit 0");
  ASSERT_TRUE(wait_for_port());
  std::this_thread::sleep_for(500ms);
  auto twin = cluster_->start(
      2,
      {kProgram,
       "launch",
       "--num_machines",
       "3",
       "--machine_rank",
       "1",
       "--main_process_ip",
       "10.77.0.1",
       "--num_processes",
       "6",
       "sh",
       "-c",
       "exit 0"},
      {{"ACCELERATE_JOB_TOKEN", "of this test"}});
  EXPECT_EQ(twin->wait(10s).exit_code, 2);
  EXPECT_THAT(
      twin->err(), HasSubstr("machine_rank 1 is taken by node1; give each"));
  auto third = launch(3, 2, "exit 0");
  for (auto* launcher : {first.get(), second.get(), third.get()}) {
    EXPECT_EQ(launcher->wait(10s).exit_code, 0) << launcher->err();
  }
  EXPECT_THAT(first->err(), HasSubstr("rejected a machine at 10.77.0.3"));
}

TEST_F(Machines, RejectADifferentConfiguration) {
  make_hosts(2);
  auto first = launch(2, 0, "exit 0", {"--join_timeout", "3"});
  auto second = launch(2, 1, "exit 0", {"--mixed_precision", "bf16"});
  EXPECT_EQ(second->wait(10s).exit_code, 2);
  EXPECT_THAT(
      second->err(),
      HasSubstr("it has mixed_precision=bf16, but machine 0 has "
                "mixed_precision=no"));
  EXPECT_EQ(first->wait(10s).exit_code, 1);
}

TEST_F(Machines, ShareATokenAndRejectAnother) {
  make_hosts(2);
  auto first =
      launch(2, 0, "exit 0", {}, {{"ACCELERATE_JOB_TOKEN", "open sesame"}});
  auto thief =
      launch(2, 1, "exit 0", {}, {{"ACCELERATE_JOB_TOKEN", "open barley"}});
  EXPECT_EQ(thief->wait(10s).exit_code, 2);
  EXPECT_THAT(thief->err(), HasSubstr("the job token is wrong"));
  const auto token = folder_.write("token", "open sesame\n");
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  auto second = launch(
      2,
      1,
      "echo token=$ACCELERATE_JOB_TOKEN.",
      {},
      {{"ACCELERATE_JOB_TOKEN_FILE", token}});
  // The programs differ, so that the script above could be another one.
  EXPECT_EQ(second->wait(10s).exit_code, 2);
  auto third =
      launch(2, 1, "exit 0", {}, {{"ACCELERATE_JOB_TOKEN_FILE", token}});
  EXPECT_EQ(third->wait(10s).exit_code, 0) << third->err();
  EXPECT_EQ(first->wait(10s).exit_code, 0) << first->err();
  EXPECT_THAT(first->err(), Not(HasSubstr("without a token")));
}

TEST_F(Machines, NameTheOwnerOfABusyPort) {
  make_hosts(2);
  auto owner = launch(2, 0, "exit 0");
  ASSERT_TRUE(wait_for_port());
  auto second = launch(2, 0, "exit 0");
  EXPECT_EQ(second->wait(10s).exit_code, 2);
  EXPECT_THAT(
      second->err(),
      AllOf(
          HasSubstr("port 29500 of this machine is taken by pid "),
          HasSubstr("(accelerate)")));
}

struct Blow {
  int machine;
  int signal;
  int own_code;
  int other_code;
};

class MachinesStruck : public Machines,
                       public ::testing::WithParamInterface<Blow> {};

TEST_P(MachinesStruck, EndTogether) {
  const Blow blow = GetParam();
  make_hosts(2);
  std::unique_ptr<Subprocess> launchers[] = {
      launch(2, 0, waiting_script(), {"--grace_seconds", "4"}),
      launch(2, 1, waiting_script(), {"--grace_seconds", "4"})};
  ASSERT_TRUE(wait_for_ranks(4));
  launchers[blow.machine]->send(blow.signal);
  // A shell that is hit between two commands may wait for the second one, until
  // the launcher gives up.
  EXPECT_EQ(launchers[blow.machine]->wait(60s).exit_code, blow.own_code);
  EXPECT_EQ(launchers[1 - blow.machine]->wait(60s).exit_code, blow.other_code)
      << launchers[1 - blow.machine]->err();
  EXPECT_THAT(left(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Blows,
    MachinesStruck,
    ::testing::Values(
        Blow{0, SIGINT, 130, 130},
        Blow{1, SIGINT, 130, 130},
        Blow{0, SIGTERM, 143, 143},
        Blow{1, SIGTERM, 143, 143},
        Blow{0, SIGKILL, 137, 1},
        Blow{1, SIGKILL, 137, 1}));

} // namespace
} // namespace accelerate::testing
