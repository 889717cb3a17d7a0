// SPDX-License-Identifier: Apache-2.0
// Under a real Slurm of two hosts: slurmctld, two slurmd and munge. All
// programs are Debian's, whatever other Slurm is on the PATH.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "support/cluster.h"
#include "support/program.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

bool is_installed() {
  for (const char* program :
       {"/usr/sbin/slurmctld",
        "/usr/sbin/slurmd",
        "/usr/sbin/munged",
        "/usr/bin/srun"}) {
    if (!std::filesystem::exists(program)) {
      return false;
    }
  }
  return true;
}

class Slurm : public ::testing::Test {
 protected:
  // One cluster for all tests, because it takes seconds to start.
  static void SetUpTestSuite() {
    if (Cluster::why_not().empty() && is_installed()) {
      start();
    }
  }
  static void TearDownTestSuite() {
    for (auto daemon = daemons_.rbegin(); daemon != daemons_.rend(); ++daemon) {
      (*daemon)->send(SIGTERM);
      (*daemon)->wait(10s);
    }
    daemons_.clear();
    cluster_.reset();
    folder_.reset();
  }
  void SetUp() override {
    if (!Cluster::why_not().empty()) {
      GTEST_SKIP() << Cluster::why_not();
    }
    if (!is_installed()) {
      GTEST_SKIP() << "slurm-wlm and munge are not installed";
    }
    ASSERT_TRUE(is_up_) << daemons_[1]->err() << daemons_[2]->err();
  }

  static void start() {
    folder_ = std::make_unique<TempDir>();
    cluster_ = std::make_unique<Cluster>(2);
    const std::string here = folder_->path();
    shell(
        "chmod 755 " + here + "; mkdir " + here +
        "/state; dd if=/dev/urandom "
        "of=" +
        here + "/key bs=1 count=1024; chmod 400 " + here + "/key");
    folder_->write(
        "slurm.conf",
        "ClusterName=test\nSlurmctldHost=node0(10.77.0.1)\nSlurmUser=root\n"
        "SlurmdUser=root\nAuthType=auth/munge\nCredType=cred/munge\n"
        "AuthInfo=socket=" +
            here +
            "/munge.socket\nSlurmctldPort=16817\n"
            "SlurmdPort=16818\nStateSaveLocation=" +
            here +
            "/state\n"
            "SlurmdSpoolDir=" +
            here + "/spool.%n\nSlurmctldPidFile=" + here +
            "/ctld.pid\nSlurmdPidFile=" + here +
            "/slurmd.%n.pid\n"
            "ProctrackType=proctrack/pgid\nTaskPlugin=task/"
            "none\nMpiDefault=none\n"
            "SelectType=select/cons_tres\nReturnToService=2\nSwitchType=switch/"
            "none\n"
            "JobAcctGatherType=jobacct_gather/none\nKillWait=2\n"
            "NodeName=node0 NodeAddr=10.77.0.1 CPUs=2 State=UNKNOWN\n"
            "NodeName=node1 NodeAddr=10.77.0.2 CPUs=2 State=UNKNOWN\n"
            "PartitionName=all Nodes=node0,node1 Default=YES "
            "OverSubscribe=YES:4 "
            "State=UP\n");
    daemons_.push_back(std::make_unique<Subprocess>(std::vector<std::string>{
        "/usr/sbin/munged",
        "--foreground",
        "--force",
        "--socket=" + here + "/munge.socket",
        "--key-file=" + here + "/key",
        "--pid-file=" + here + "/munge.pid",
        "--seed-file=" + here + "/munge.seed",
        "--log-file=" + here + "/munge.log"}));
    eventually([&] { return std::filesystem::exists(here + "/munge.socket"); });
    daemons_.push_back(
        cluster_->start(0, {"/usr/sbin/slurmctld", "-D"}, variables()));
    const std::vector<std::string> slurmd = {"/usr/sbin/slurmd", "-D"};
    daemons_.push_back(cluster_->start(0, slurmd, variables()));
    daemons_.push_back(cluster_->start(1, slurmd, variables()));
    is_up_ = eventually(
        [] {
          return srun({"-N2", "true"}, 5s).exit_code == 0;
        },
        30s);
  }

  static std::map<std::string, std::string> variables() {
    return {
        {"SLURM_CONF", folder_->path() / "slurm.conf"},
        {"PATH", "/usr/sbin:/usr/bin:/sbin:/bin"},
        {"HOME", folder_->path()},
        {"TEST_MARK", folder_->path().filename()}};
  }

  static ProcessResult srun(
      std::vector<std::string> arguments,
      std::chrono::seconds limit = 30s) {
    arguments.insert(arguments.begin(), "/usr/bin/srun");
    return cluster_->start(0, arguments, variables())->wait(limit);
  }

  static std::unique_ptr<TempDir> folder_;
  static std::unique_ptr<Cluster> cluster_;
  static std::vector<std::unique_ptr<Subprocess>> daemons_;
  static bool is_up_;
};

std::unique_ptr<TempDir> Slurm::folder_;
std::unique_ptr<Cluster> Slurm::cluster_;
std::vector<std::unique_ptr<Subprocess>> Slurm::daemons_;
bool Slurm::is_up_ = false;

TEST_F(Slurm, OneTaskPerRankRunsTheProgramInPlace) {
  const auto result = srun(
      {"-N1",
       "-n2",
       kProgram,
       "launch",
       "sh",
       "-c",
       "echo rank $RANK/$WORLD_SIZE local $LOCAL_RANK at $MASTER_ADDR "
       "$(cat /proc/$PPID/comm)"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("rank 0/2 local 0 at node0 slurmstepd"),
          HasSubstr("rank 1/2 local 1 at node0 slurmstepd")));
}

TEST_F(Slurm, OneTaskPerMachineStartsTheLocalWorkers) {
  const auto result = srun(
      {"-N2",
       "-n2",
       kProgram,
       "launch",
       "--num_processes",
       "4",
       "sh",
       "-c",
       "echo rank $RANK/$WORLD_SIZE local $LOCAL_RANK at $MASTER_ADDR on "
       "$(hostname)"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("rank 0/4 local 0 at node0 on node0"),
          HasSubstr("rank 1/4 local 1 at node0 on node0"),
          HasSubstr("rank 2/4 local 0 at node0 on node1"),
          HasSubstr("rank 3/4 local 1 at node0 on node1")));
  EXPECT_THAT(result.err, HasSubstr("node1  2-3"));
  // The launchers created a token and removed it.
  EXPECT_TRUE(std::filesystem::is_empty(
      folder_->path() / ".cache" / "accelerate" / "tokens"));
}

TEST_F(Slurm, OneTaskStartsAsManyWorkersAsAsked) {
  const auto result = srun(
      {"-n1",
       kProgram,
       "launch",
       "--num_processes",
       "2",
       "sh",
       "-c",
       "echo rank $RANK/$WORLD_SIZE"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank 0/2"), HasSubstr("rank 1/2")));
}

TEST_F(Slurm, ReturnsTheCodeOfTheRankThatFailed) {
  const auto result = srun(
      {"-N2",
       "-n2",
       kProgram,
       "launch",
       "--num_processes",
       "4",
       "sh",
       "-c",
       "[ $RANK = 3 ] && exit 7; sleep 61"});
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Rank 3 on node1 "));
}

TEST_F(Slurm, RefusesANumberThatContradictsTheTasks) {
  const auto result =
      srun({"-N1", "-n2", kProgram, "launch", "--num_processes", "4", "true"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("Slurm has started 2 tasks"));
}

TEST_F(Slurm, TrainsWithAndWithoutOurLauncherAndWithoutFlags) {
  if (!std::filesystem::exists(kTraining)) {
    GTEST_SKIP() << "this build has no training library";
  }
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"-N1", "-n2", kTraining}, "training on 2 process(es)"},
      {{"-N2", "-n2", kTraining}, "training on 2 process(es)"},
      {{"-N1", "-n2", kProgram, "launch", kTraining},
       "training on 2 process(es)"},
      {{"-N2", "-n2", kProgram, "launch", "--num_processes", "4", kTraining},
       "training on 4 process(es)"},
  };
  for (const auto& [arguments, expected] : cases) {
    const auto result = srun(arguments, 60s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(expected));
  }
}

} // namespace
} // namespace accelerate::testing
