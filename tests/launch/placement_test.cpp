// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/placement.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "core/config/fields.h"
#include "core/config/yaml_tree.h"
#include "support/temp_dir.h"
#include "support/variables.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using testing::Variables;

Placement place(const Variables& variables, ResolvedConfig config = {}) {
  return find_placement(config, testing::lookup(variables));
}

const Variables kOneTaskPerNode = {
    {"SLURM_PROCID", "1"},
    {"SLURM_NTASKS", "2"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_JOB_ID", "7"},
    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
    {"SLURM_STEP_NODELIST", "gpu[3-4]"}};

TEST(Placement, IsOneMachineByDefault) {
  const auto placement = place({});
  EXPECT_FALSE(placement.is_in_place);
  EXPECT_EQ(placement.num_machines, 1);
}

TEST(Placement, IsTheLauncherOfItsMachineWithOneSlurmTaskPerNode) {
  const auto placement = place(kOneTaskPerNode);
  EXPECT_FALSE(placement.is_in_place);
  EXPECT_EQ(placement.num_machines, 2);
  EXPECT_EQ(placement.machine_rank, 1);
  EXPECT_EQ(placement.rendezvous.address, "gpu3");
}

TEST(Placement, IsInPlaceWithSeveralTasksOnANode) {
  const auto placement = place(
      {{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_TRUE(placement.is_in_place);
  EXPECT_EQ(placement.environment.topology.rank, 1);
}

TEST(Placement, TakesAPyTorchJobsRankAsTheMachine) {
  const auto placement = place(
      {{"RANK", "1"},
       {"WORLD_SIZE", "3"},
       {"MASTER_ADDR", "job-master-0"},
       {"MASTER_PORT", "23456"}});
  EXPECT_FALSE(placement.is_in_place);
  EXPECT_EQ(placement.num_machines, 3);
  EXPECT_EQ(placement.machine_rank, 1);
  EXPECT_EQ(placement.rendezvous, (Rendezvous{"job-master-0", 23456}));
  EXPECT_TRUE(placement.listens_everywhere);
}

TEST(Placement, PrefersTheOperatorsNodeVariables) {
  const auto placement = place(
      {{"RANK", "1"},
       {"WORLD_SIZE", "8"},
       {"PET_NNODES", "2"},
       {"PET_NODE_RANK", "1"},
       {"PET_MASTER_ADDR", "job-master-0"},
       {"PET_MASTER_PORT", "23456"}});
  EXPECT_EQ(placement.num_machines, 2);
  EXPECT_EQ(placement.machine_rank, 1);
  EXPECT_EQ(placement.rendezvous, (Rendezvous{"job-master-0", 23456}));
}

TEST(Placement, NamesTheVariableOfTheOperatorThatIsWrong) {
  EXPECT_THAT(
      [] {
        place({{"PET_NNODES", "two"}, {"PET_NODE_RANK", "1"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("PET_NNODES='two'")));
}

TEST(Placement, IsInPlaceUnderTorchrun) {
  EXPECT_TRUE(place({{"RANK", "1"},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", "1"},
                     {"LOCAL_WORLD_SIZE", "2"}})
                  .is_in_place);
}

TEST(Placement, StartsAJobOfItsOwnInsideAWorkerOfTheLauncher) {
  for (const char* mark : {"ACCELERATE_MAIN_PID", "ACCELERATE_RUN_REPORT"}) {
    Variables outer = kOneTaskPerNode;
    outer.insert(
        {{mark, "7"},
         {"RANK", "1"},
         {"WORLD_SIZE", "2"},
         {"LOCAL_RANK", "1"},
         {"LOCAL_WORLD_SIZE", "2"},
         {"MASTER_ADDR", "10.0.0.1"},
         {"MASTER_PORT", "23456"}});
    const auto placement = place(outer);
    EXPECT_FALSE(placement.is_in_place);
    EXPECT_EQ(placement.num_machines, 1);
    EXPECT_EQ(placement.machine_rank, 0);
    const auto env = variables_of_new_job(testing::lookup(outer));
    EXPECT_EQ(env("MASTER_ADDR"), std::nullopt);
    EXPECT_EQ(env("MASTER_PORT"), std::nullopt);
    EXPECT_EQ(env("RANK"), "1");
    outer.erase(mark);
    EXPECT_EQ(
        variables_of_new_job(testing::lookup(outer))("MASTER_PORT"), "23456");
  }
}

TEST(Placement, LetsFlagsWinOverTheCluster) {
  ResolvedConfig config;
  config.values.num_machines = 4;
  config.values.machine_rank = 3;
  config.values.main_process_ip = "10.0.0.1";
  config.sources["num_machines"] = {SourceKind::kFlag, "--num_machines"};
  const auto placement = place(kOneTaskPerNode, config);
  EXPECT_EQ(placement.num_machines, 4);
  EXPECT_EQ(placement.machine_rank, 3);
  EXPECT_EQ(
      placement.rendezvous, (Rendezvous{"10.0.0.1", kDefaultMainProcessPort}));
}

TEST(Placement, OfAnElasticJobNeedsNoRank) {
  ResolvedConfig config;
  config.values.num_machines = {2, 4};
  config.values.main_process_ip = "127.0.0.1";
  const auto first = place({}, config);
  EXPECT_EQ(first.machine_rank, 0);
  EXPECT_EQ(first.num_machines, 4);
  EXPECT_EQ(first.least_machines, 2);
  // From a network reserved for documentation, and a name that does not exist.
  for (const char* address : {"192.0.2.1", "nobody.invalid"}) {
    config.values.main_process_ip = address;
    EXPECT_EQ(place({}, config).machine_rank, kAnyMachine);
  }
  config.values.machine_rank = 3;
  config.sources["machine_rank"] = {SourceKind::kFlag, "--machine_rank"};
  EXPECT_EQ(place({}, config).machine_rank, 3);
  config.values.num_machines = 4;
  EXPECT_FALSE(place({}, config).least_machines);
}

TEST(Placement, RefusesContradictionsAndMissingAddresses) {
  ResolvedConfig config;
  config.values.num_processes = 4;
  config.sources["num_processes"] = {SourceKind::kFlag, "--num_processes"};
  EXPECT_THAT(
      [&] {
        place(
            {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, config);
      },
      ThrowsMessage<ConfigError>(HasSubstr("has started 2 tasks")));
  ResolvedConfig no_address;
  no_address.values.num_machines = 2;
  EXPECT_THAT(
      [&] { place({}, no_address); },
      ThrowsMessage<ConfigError>(HasSubstr("--main_process_ip")));
}

/// The variables of pod `index` of a manifest's container, as Kubernetes would
/// set them.
Variables pod_variables(const nlohmann::json& container, int index) {
  Variables variables;
  for (const auto& entry : container.at("env")) {
    const auto name = entry.at("name").get<std::string>();
    if (entry.contains("value")) {
      variables[name] = entry["value"].get<std::string>();
    } else if (entry["valueFrom"].contains("fieldRef")) {
      EXPECT_EQ(
          entry["valueFrom"]["fieldRef"]["fieldPath"],
          "metadata.annotations['batch.kubernetes.io/job-completion-index']");
      variables[name] = std::to_string(index);
    } else {
      EXPECT_TRUE(entry["valueFrom"].contains("secretKeyRef"));
      variables[name] = "a secret";
    }
  }
  return variables;
}

struct Manifest {
  const char* file;
  const char* pods;
  const char* first_pod;
};

TEST(Placement, IsAMachineInEachPodOfTheExamples) {
  const Manifest manifests[] = {
      {"indexed_job.yaml", "/spec", "train-0.train"},
      {"jobset.yaml",
       "/spec/replicatedJobs/0/template/spec",
       "train-pods-0-0.train"}};
  for (const auto& [file, pods, first_pod] : manifests) {
    std::string text = testing::read_file(
        std::string(TEST_REFERENCE_DIR) + "/../../examples/kubernetes/" + file);
    // Behind its own service, if there is one.
    const size_t mark = text.find("---\n");
    text = mark == std::string::npos ? text : text.substr(mark + 4);
    nlohmann::json document;
    for (const auto& entry : parse_yaml_mapping(text, file)) {
      document[entry.key] = entry.value;
    }
    const auto job = document.at(nlohmann::json::json_pointer(pods));
    const auto container = job.at("template").at("spec").at("containers").at(0);
    for (int index = 0; index < job.at("completions"); ++index) {
      const auto variables = pod_variables(container, index);
      const auto placement = place(variables);
      EXPECT_FALSE(placement.is_in_place);
      EXPECT_EQ(placement.num_machines, job.at("completions"));
      EXPECT_EQ(placement.machine_rank, index);
      EXPECT_EQ(placement.rendezvous.address, first_pod);
      EXPECT_EQ(placement.rendezvous.port, 29500);
      EXPECT_TRUE(placement.listens_everywhere);
      EXPECT_EQ(variables.at("ACCELERATE_JOB_TOKEN"), "a secret");
    }
    for (const auto& argument : container.at("args")) {
      const auto word = argument.get<std::string>();
      EXPECT_TRUE(!word.starts_with("--") || find_field(word.substr(2)))
          << word;
    }
  }
}

} // namespace
} // namespace accelerate
