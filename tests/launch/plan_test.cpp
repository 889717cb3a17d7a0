// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/plan.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

LaunchPlan plan_of(
    const LaunchConfig& values,
    const MachineFacts& facts = {},
    const Placement& placement = {}) {
  ResolvedConfig config;
  config.values = values;
  return make_plan(config, {"./train", "-x"}, placement, facts);
}

MachineFacts two_gpus() {
  MachineFacts facts;
  facts.gpus = {
      {.index = 0, .name = "H200", .numa_node = 1},
      {.index = 1, .name = "H200", .numa_node = 0}};
  facts.numa_nodes = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}};
  return facts;
}

TEST(Plan, GivesEachWorkerTorchrunsVariables) {
  const auto plan = plan_of({.num_processes = 2});
  StartOrder order;
  order.first_rank = 4;
  order.world_size = 8;
  order.group_rank = 1;
  order.group_world_size = 2;
  order.master_port = 1234;
  order.attempt = 1;
  order.max_restarts = 3;
  order.run_id = "abc";
  const auto workers = workers_of(plan, order);
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_THAT(workers[1].command.command, ElementsAre("./train", "-x"));
  const std::pair<const char*, const char*> expected[] = {
      {"RANK", "5"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_RANK", "5"},
      {"ROLE_WORLD_SIZE", "8"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "1234"},
      {"TORCHELASTIC_RESTART_COUNT", "1"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "abc"},
      {"ACCELERATE_MIXED_PRECISION", "no"},
  };
  for (const auto& [name, value] : expected) {
    EXPECT_THAT(workers[1].command.variables, Contains(Pair(name, value)));
  }
}

TEST(Plan, StartsOneProcessPerGpuOrOneOnTheCpu) {
  EXPECT_EQ(plan_of({}).num_local, 1);
  EXPECT_EQ(plan_of({}, two_gpus()).num_local, 2);
  EXPECT_EQ(plan_of({.num_processes = 4}).num_local, 4);
}

TEST(Plan, DividesTheCoresUnlessConfigured) {
  unsetenv("OMP_NUM_THREADS");
  const auto threads = [](const LaunchPlan& plan) {
    return added_variables(plan.command).at("OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads(plan_of({}, two_gpus())), "4");
  EXPECT_EQ(threads(plan_of({.num_processes = 3}, two_gpus())), "2");
  EXPECT_EQ(
      threads(plan_of({.num_cpu_threads_per_process = 5}, two_gpus())), "5");
}

TEST(Plan, KeepsAWorkerOnTheCoresNearItsGpu) {
  const auto plan = plan_of({.enable_cpu_affinity = true}, two_gpus());
  const auto workers = workers_of(plan, {});
  EXPECT_THAT(workers[0].command.cores, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(workers[1].command.cores, ElementsAre(0, 1, 2, 3));
}

TEST(Plan, FindsTheNodeOfAGpuIfNumbersHaveGaps) {
  MachineFacts facts = two_gpus();
  facts.gpus[0].numa_node = 8;
  facts.numa_nodes = {{0, {0, 1}}, {8, {2, 3}}};
  const auto plan =
      plan_of({.enable_cpu_affinity = true, .bind_memory = true}, facts);
  const auto workers = workers_of(plan, {});
  EXPECT_THAT(workers[0].command.cores, ElementsAre(2, 3));
  EXPECT_THAT(workers[0].command.memory_nodes, ElementsAre(8));
  EXPECT_THAT(workers[1].command.cores, ElementsAre(0, 1));
  EXPECT_THAT(workers[1].command.memory_nodes, ElementsAre(0));
}

TEST(Plan, IsFinishedByWhatTheStarterSettles) {
  ResolvedConfig config;
  config.values.num_processes = 2;
  LaunchStarter starter;
  starter.num_local = 3;
  starter.variables = {{"A", "b"}, {"ACCELERATE_MIXED_PRECISION", "fp16"}};
  starter.is_input_shared = false;
  const auto plan = make_plan(config, {"./train"}, {}, {}, starter);
  EXPECT_EQ(plan.num_local, 3);
  EXPECT_FALSE(plan.output.is_input_shared);
  EXPECT_THAT(plan.command.variables, Contains(Pair("A", "b")));
  EXPECT_THAT(
      plan.command.variables,
      Contains(Pair("ACCELERATE_MIXED_PRECISION", "no")));
  starter.num_local = {};
  starter.mpirun_version = "mpirun (Open MPI) 4.1.4";
  const testing::TempDir folder;
  config.values.mpirun_hostfile = folder.write("hosts", "localhost slots=2\n");
  const auto under_mpi = make_plan(config, {"./train"}, {}, {}, starter);
  EXPECT_FALSE(under_mpi.is_ranked);
  EXPECT_EQ(under_mpi.num_local, 1);
  EXPECT_EQ(under_mpi.command.command[0], "mpirun");
}

TEST(Plan, NamesAnErrorFileInTheFolderOfLogs) {
  StartOrder order;
  order.run_id = "abc";
  const auto with_logs = workers_of(plan_of({.log_dir = "/logs"}), order);
  EXPECT_THAT(
      with_logs[0].command.variables,
      Contains(Pair(
          "TORCHELASTIC_ERROR_FILE",
          "/logs/run_abc/attempt_0/rank_0/error.json")));
  EXPECT_FALSE(workers_of(plan_of({}), order)[0].command.variables.contains(
      "TORCHELASTIC_ERROR_FILE"));
}

TEST(Plan, SpreadsCpuWorkersOverTheNumaNodes) {
  MachineFacts facts;
  facts.numa_nodes = {{0, {0, 1}}, {1, {2, 3}}};
  const auto plan =
      plan_of({.num_processes = 4, .enable_cpu_affinity = true}, facts);
  EXPECT_THAT(
      plan.cores,
      ElementsAre(
          ElementsAre(0, 1),
          ElementsAre(0, 1),
          ElementsAre(2, 3),
          ElementsAre(2, 3)));
}

TEST(Plan, RejectsWhatTheMachineDoesNotHave) {
  EXPECT_THAT(
      [] { plan_of({.multi_gpu = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("no usable GPU")));
  EXPECT_THAT(
      [] { plan_of({.multi_gpu = true, .num_processes = 3}, two_gpus()); },
      ThrowsMessage<ConfigError>(HasSubstr("2 usable GPUs")));
  Placement placement;
  placement.num_machines = 2;
  EXPECT_THAT(
      [&] { plan_of({.num_processes = 3}, {}, placement); },
      ThrowsMessage<ConfigError>(HasSubstr("use a multiple of 2")));
}

TEST(Plan, LeavesTheTerminalToTheOnlyWorker) {
  EXPECT_TRUE(plan_of({}).output.is_inherited);
  EXPECT_FALSE(plan_of({.num_processes = 2}).output.is_inherited);
  EXPECT_FALSE(plan_of({.log_dir = "logs"}).output.is_inherited);
}

} // namespace
} // namespace accelerate
