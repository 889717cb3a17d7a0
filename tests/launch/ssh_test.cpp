// SPDX-License-Identifier: Apache-2.0
// `--hosts` and `--hostfile` with a real sshd on each host. All programs are
// Debian's, whatever other ssh is on the PATH.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <regex>

#include "support/cluster.h"
#include "support/program.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;

class Ssh : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = Cluster::why_not();
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
    for (const char* program :
         {"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
      if (!std::filesystem::exists(program)) {
        GTEST_SKIP() << program
                     << " is missing: openssh-server and openssh-client are "
                        "not installed";
      }
    }
    cluster_ = std::make_unique<Cluster>(3);
    const std::string here = folder_.path();
    ASSERT_EQ(
        shell(
            "mkdir -p /run/sshd; cd " + here +
            "; /usr/bin/ssh-keygen -q -t ed25519 -N '' -f host_key; "
            "/usr/bin/ssh-keygen -q -t ed25519 -N '' -f user_key; cp "
            "user_key.pub authorized; chmod 600 "
            "authorized"),
        0);
    folder_.write(
        "sshd_config",
        "Port 2222\nHostKey " + here + "/host_key\nAuthorizedKeysFile " + here +
            "/authorized\nStrictModes no\nUsePAM no\nPidFile none\n");
    folder_.write(
        "ssh_config",
        "Host *\n  Port 2222\n  IdentityFile " + here +
            "/user_key\n  StrictHostKeyChecking no\n  UserKnownHostsFile "
            "/dev/null\n  LogLevel ERROR\n");
    for (const int host : {1, 2}) {
      servers_.push_back(cluster_->start(
          host, {"/usr/sbin/sshd", "-D", "-e", "-f", here + "/sshd_config"}));
    }
    ASSERT_TRUE(eventually([&] {
      return servers_[0]->err().find("listening") != std::string::npos &&
             servers_[1]->err().find("listening") != std::string::npos;
    })) << servers_[0]->err();
  }

  std::unique_ptr<Subprocess> launch(
      std::vector<std::string> flags,
      const std::string& script,
      std::map<std::string, std::string> variables = {}) {
    std::vector<std::string> command = {kProgram, "launch"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {"sh", "-c", script});
    variables["ACCELERATE_SSH_COMMAND"] =
        "/usr/bin/ssh -F '" + folder_.path().string() + "/ssh_config'";
    variables["ACCELERATE_TEST_MARK"] = mark();
    variables["NCCL_TEST_VALUE"] = "passed on";
    return cluster_->start(0, command, variables);
  }

  std::string mark() const { return folder_.path().filename().string(); }
  std::vector<pid_t> left() const {
    const std::string variable = "ACCELERATE_TEST_MARK=" + mark();
    eventually([&] { return processes_with(variable).empty(); }, 5s);
    return processes_with(variable);
  }

  TempDir folder_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Subprocess>> servers_;
};

TEST_F(Ssh, StartsTheLaunchersOfTheOtherHosts) {
  auto job = launch(
      {"--hosts", "node0,node1,node2", "--num_processes", "6"},
      "echo rank $RANK of $WORLD_SIZE on $(hostname) in $(pwd) with "
      "$NCCL_TEST_VALUE");
  const auto result = job->wait(30s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string folder = std::filesystem::current_path();
  for (int rank = 0; rank < 6; ++rank) {
    const std::string line = "rank " + std::to_string(rank) + " of 6 on node" +
                             std::to_string(rank / 2) + " in " + folder +
                             " with passed on\n";
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_THAT(result.err, HasSubstr("      2  node2  4-5        CPU"));
  EXPECT_THAT(result.err, Not(HasSubstr("without a token")));
}

TEST_F(Ssh, ReadsAHostFileWithSlots) {
  const auto file =
      folder_.write("hosts", "# two machines\nnode0 slots=1\nnode1 slots=2\n");
  auto job = launch(
      {"--hostfile", file},
      "echo rank $RANK of $WORLD_SIZE local "
      "$LOCAL_RANK/$LOCAL_WORLD_SIZE");
  const auto result = job->wait(30s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("rank 0 of 3 local 0/1"),
          HasSubstr("rank 1 of 3 local 0/2"),
          HasSubstr("rank 2 of 3 local 1/2")));
}

TEST_F(Ssh, KeepsTheTokenOffEveryCommandLine) {
  auto job = launch(
      {"--hosts",
       "node0,node1",
       "--num_processes",
       "2",
       "--grace_seconds",
       "2"},
      "touch " + folder_.path().string() + "/run$RANK; sleep 61");
  ASSERT_TRUE(eventually([&] {
    return std::filesystem::exists(folder_.path() / "run0") &&
           std::filesystem::exists(folder_.path() / "run1");
  })) << job->err();
  const std::regex token("[0-9a-f]{64}");
  int num_seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string line = read_file(entry.path() / "cmdline");
    const std::string environment = read_file(entry.path() / "environ");
    if (environment.find(mark()) != std::string::npos) {
      EXPECT_FALSE(std::regex_search(line, token)) << line;
    }
    num_seen += line.find("join_from_stdin") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(num_seen, 2); // ssh here, the launcher there.
  job->send(SIGTERM);
  EXPECT_EQ(job->wait(10s).exit_code, 143) << job->err();
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Ssh, StartsTheLauncherOfALostHostAgain) {
  auto job = launch(
      {"--hosts", "node0,node1", "--num_processes", "2", "--max_restarts", "1"},
      "touch " + folder_.path().string() +
          "/run$RANK; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; sleep 61");
  ASSERT_TRUE(eventually([&] {
    return std::filesystem::exists(folder_.path() / "run0") &&
           std::filesystem::exists(folder_.path() / "run1");
  })) << job->err();
  // Kills everything that sshd started on that host at once.
  ASSERT_EQ(shell("pkill -9 -P " + std::to_string(servers_[0]->pid())), 0);
  const auto result = job->wait(40s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("machine 1 (node1) was lost"),
          HasSubstr("machine 1 (node1) has rejoined")));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Ssh, PassesExportedVariablesOn) {
  auto job = launch(
      {"--hosts",
       "node0,node1",
       "--num_processes",
       "2",
       "--export",
       "TEST_A",
       "--export",
       "TEST_B"},
      "echo rank $RANK has $TEST_A and $TEST_B",
      {{"TEST_A", "1, 2"}, {"TEST_B", "it's"}});
  const auto result = job->wait(30s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rank 1 has 1, 2 and it's"));
}

TEST_F(Ssh, EndsTheOtherHostsWhenTheLauncherIsKilled) {
  auto job = launch(
      {"--hosts", "node0,node1", "--num_processes", "2"},
      "touch " + folder_.path().string() +
          "/run$RANK; setsid sleep 62 & sleep 61");
  ASSERT_TRUE(eventually([&] {
    return std::filesystem::exists(folder_.path() / "run0") &&
           std::filesystem::exists(folder_.path() / "run1");
  })) << job->err();
  job->send(SIGKILL);
  job->wait(10s);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Ssh, ReportsAFailureOnAnotherHostOnce) {
  auto job = launch(
      {"--hosts", "node0,node1", "--num_processes", "2"},
      "[ $RANK = 1 ] && { sleep 0.2; echo broken >&2; exit 9; }; sleep 61");
  const auto result = job->wait(20s);
  EXPECT_EQ(result.exit_code, 9);
  const std::string line = "Rank 1 on node1 ";
  const size_t at = result.err.find(line);
  EXPECT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(line, at + 1), std::string::npos) << result.err;
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(Ssh, SaysWhichHostCannotBeReached) {
  servers_[0]->send(SIGTERM);
  servers_[0]->wait(5s);
  auto job = launch({"--hosts", "node0,node1", "--num_processes", "2"}, "true");
  const auto result = job->wait(20s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err, HasSubstr("the launcher on node1 failed with exit code 255"));
  EXPECT_THAT(result.err, HasSubstr("Connection refused"));
}

TEST_F(Ssh, WantsTheFirstHostToBeThisMachine) {
  auto job = launch({"--hosts", "node1,node0", "--num_processes", "2"}, "true");
  const auto result = job->wait(20s);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("is not this machine"));
}

} // namespace
} // namespace accelerate::testing
