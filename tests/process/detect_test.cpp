// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <map>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "core/process/cluster_environment.h"
#include "support/variables.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::lookup;
using ::testing::ThrowsMessage;
using testing::Variables;

ProcessEnvironment detect(const Variables& variables) {
  return detect_environment(lookup(variables));
}

struct Case {
  const char* name;
  Variables variables;
  ProcessTopology topology;
  Rendezvous rendezvous;
  std::string starter;
};

class DetectEnvironment : public ::testing::TestWithParam<Case> {};

TEST_P(DetectEnvironment, ReadsTheStartersVariables) {
  const auto found = detect(GetParam().variables);
  const auto& expected = GetParam();
  EXPECT_EQ(found.topology, expected.topology);
  EXPECT_EQ(found.starter_name(), expected.starter);
  EXPECT_EQ(found.rendezvous.address, expected.rendezvous.address);
  if (expected.rendezvous.port != 0) {
    EXPECT_EQ(found.rendezvous.port, expected.rendezvous.port);
  }
}

const Case kCases[] = {
    {"Nothing", {}, {0, 1, 0, 1, 0}, {}, "none"},
    {"Torchrun",
     {{"RANK", "3"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "1"},
      {"MASTER_ADDR", "host1"},
      {"MASTER_PORT", "29511"}},
     {3, 4, 1, 2, 1},
     {"host1", 29511},
     "torchrun"},
    {"PyTorchJobWithOneProcessPerPod",
     {{"RANK", "2"},
      {"WORLD_SIZE", "3"},
      {"MASTER_ADDR", "job-master-0"},
      {"MASTER_PORT", "23456"}},
     {2, 3, 0, 1, 2},
     {"job-master-0", 23456},
     "torchrun"},
    {"OpenMpiOnOneMachine",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "prterun-1@1"}},
     {1, 2, 1, 2, 0},
     {"127.0.0.1", 0},
     "Open MPI"},
    {"OpenMpiOnTwoMachinesNamesNoHost",
     {{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
     {3, 4, 1, 2, 1},
     {"", 0},
     "Open MPI"},
    {"IntelMpi",
     {{"PMI_RANK", "5"},
      {"PMI_SIZE", "8"},
      {"MPI_LOCALRANKID", "1"},
      {"MPI_LOCALNRANKS", "4"},
      {"MASTER_ADDR", "head"}},
     {5, 8, 1, 4, 1},
     {"head", 0},
     "PMI"},
    {"Mvapich",
     {{"MV2_COMM_WORLD_RANK", "0"},
      {"MV2_COMM_WORLD_SIZE", "2"},
      {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
      {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}},
     {0, 2, 0, 2, 0},
     {"127.0.0.1", 0},
     "MVAPICH"},
    {"Slurm",
     {{"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "7"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_NODEID", "2"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
      {"SLURM_JOB_NODELIST", "gpu[003-005,012],spare"},
      {"SLURM_JOB_ID", "1234"}},
     {5, 7, 1, 2, 2},
     {"gpu003", 0},
     "Slurm"},
    {"SlurmStepOfFewerTasksThanItsJob",
     {{"SLURM_PROCID", "1"},
      {"SLURM_NTASKS", "8"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_NODEID", "0"},
      {"SLURM_STEP_TASKS_PER_NODE", "2"},
      {"SLURM_JOB_NODELIST", "n1"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "5000"}},
     {1, 2, 1, 2, 0},
     {"127.0.0.1", 5000},
     "Slurm"},
    {"SlurmBatchScriptIsNoTask",
     {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
     {0, 1, 0, 1, 0},
     {},
     "none"},
    {"TorchrunInsideOfSlurm",
     {{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "1"}},
     {1, 2, 1, 2, 0},
     {},
     "torchrun"},
};

INSTANTIATE_TEST_SUITE_P(
    Starters,
    DetectEnvironment,
    ::testing::ValuesIn(kCases),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DetectEnvironmentErrors, NameTheVariableAndItsValue) {
  const std::pair<Variables, std::vector<std::string>> cases[] = {
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK", "'one'"}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK", "'-1'"}},
      {{{"RANK", "1 "}, {"WORLD_SIZE", "2"}}, {"RANK", "'1 '"}},
      {{{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}}, {"RANK"}},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2", "WORLD_SIZE=2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE", "'0'"}},
      {{{"RANK", "0"}}, {"RANK='0'", "WORLD_SIZE is not"}},
      {{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE=2", "RANK is not"}},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "3"},
        {"LOCAL_WORLD_SIZE", "2"}},
       {"LOCAL_RANK=3", "LOCAL_WORLD_SIZE=2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}},
       {"4 local processes", "WORLD_SIZE=2"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}},
       {"MASTER_PORT=70000"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, {"OMPI_COMM_WORLD_SIZE"}},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "x"}}, {"SLURM_NTASKS='x'"}},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_TASKS_PER_NODE", "1(x"}},
       {"SLURM_TASKS_PER_NODE='1(x'"}},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_JOB_NODELIST", "gpu[1"}},
       {"SLURM_JOB_NODELIST='gpu[1'"}},
  };
  for (const auto& [variables, parts] : cases) {
    try {
      detect(variables);
      ADD_FAILURE() << "accepted a bad " << parts[0];
    } catch (const ConfigError& error) {
      for (const auto& part : parts) {
        EXPECT_THAT(error.what(), HasSubstr(part));
      }
    }
  }
}

TEST(DetectEnvironment, DerivesOnePortPerJobForAllItsRanks) {
  Variables rank0 = {
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "77"}};
  Variables rank1 = rank0;
  rank1["SLURM_PROCID"] = "1";
  Variables other_job = rank0;
  other_job["SLURM_JOB_ID"] = "78";
  const int port = detect(rank0).rendezvous.port;
  EXPECT_EQ(port, detect(rank1).rendezvous.port);
  EXPECT_NE(port, detect(other_job).rendezvous.port);
  EXPECT_GE(port, 12000);
  EXPECT_LT(port, 32000);
}

TEST(DetectEnvironment, NamesTheJobAlikeOnAllItsMachines) {
  Variables task = {
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_ID", "3"}};
  EXPECT_EQ(detect(task).job, "slurm-77.3.0");
  task["SLURM_PROCID"] = "1";
  EXPECT_EQ(detect(task).job, "slurm-77.3.0");
  task["SLURM_RESTART_COUNT"] = "1";
  EXPECT_EQ(detect(task).job, "slurm-77.3.1");

  Variables rank = {
      {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(detect(rank).job, "");
  rank["PMIX_NAMESPACE"] = "../prterun-host-1@1";
  const std::string name = detect(rank).job;
  EXPECT_THAT(name, ::testing::MatchesRegex("mpi-[0-9a-f]+"));
  rank["OMPI_COMM_WORLD_RANK"] = "1";
  EXPECT_EQ(detect(rank).job, name);
  rank["PMIX_NAMESPACE"] = "prterun-host-2@1";
  EXPECT_NE(detect(rank).job, name);
}

TEST(FirstSlurmHost, ExpandsBracketRanges) {
  const std::pair<const char*, const char*> cases[] = {
      {"login1", "login1"},
      {"a,b", "a"},
      {"n[1-3]", "n1"},
      {"n[007,9]", "n007"},
      {"rack[2-3]node[10-11]-ib,x", "rack2node10-ib"},
  };
  for (const auto& [list, host] : cases) {
    EXPECT_EQ(first_slurm_host(list, "L"), host) << list;
  }
  for (const char* list :
       {"", ",a", "n[", "n[]", "n]1", "-oProxyCommand=x", "n 1", "n\x1b"}) {
    EXPECT_THROW(first_slurm_host(list, "L"), ConfigError) << list;
  }
}

} // namespace
} // namespace accelerate
