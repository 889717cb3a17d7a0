// SPDX-License-Identifier: Apache-2.0
#include "launch/plan.h"

#include <gmock/gmock.h>

namespace accelerate {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

std::optional<std::string> no_variables(const std::string&) {
  return std::nullopt;
}

TEST(PlanWorkers, GivesEachWorkerTorchrunsVariables) {
  const auto workers = plan_workers(
      {.num_processes = 2, .command = {"./train", "-x"}}, no_variables);
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_THAT(workers[1].command, ElementsAre("./train", "-x"));
  const auto& variables = workers[1].variables;
  EXPECT_THAT(variables, Contains(Pair("RANK", "1")));
  EXPECT_THAT(variables, Contains(Pair("LOCAL_RANK", "1")));
  EXPECT_THAT(variables, Contains(Pair("WORLD_SIZE", "2")));
  EXPECT_THAT(variables, Contains(Pair("LOCAL_WORLD_SIZE", "2")));
  EXPECT_THAT(variables, Contains(Pair("MASTER_ADDR", "127.0.0.1")));
  EXPECT_THAT(variables, Contains(Key("OMP_NUM_THREADS")));
  EXPECT_EQ(
      variables.at("MASTER_PORT"), workers[0].variables.at("MASTER_PORT"));
}

TEST(PlanWorkers, RunsScriptsThroughPython) {
  const auto workers = plan_workers({.command = {"a.py", "1"}}, no_variables);
  EXPECT_THAT(workers[0].command, ElementsAre("python3", "a.py", "1"));
}

TEST(PlanWorkers, LeavesTheUsersThreadCountAlone) {
  const auto workers = plan_workers({.command = {"x"}}, [](const auto&) {
    return std::optional<std::string>("7");
  });
  EXPECT_THAT(workers[0].variables, Not(Contains(Key("OMP_NUM_THREADS"))));
}

} // namespace
} // namespace accelerate
