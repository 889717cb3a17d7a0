// SPDX-License-Identifier: Apache-2.0
// The questions through plain prompts: one line per answer.
#include "core/config/questionnaire.h"

#include <gmock/gmock.h>

#include <sstream>

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Session {
  LaunchConfig config;
  std::string shown;
};

Session answer(
    const std::string& lines,
    const QuestionnaireOptions& options = {.num_gpus = 0, .home = "/home/x"}) {
  std::istringstream in(lines);
  std::ostringstream out;
  const auto prompter = make_plain_prompter(in, out);
  const LaunchConfig config = ask_for_config(*prompter, options);
  std::string rest;
  EXPECT_FALSE(std::getline(in, rest)) << "not asked for: " << rest;
  return {config, out.str()};
}

TEST(Questionnaire, TakesEveryDefault) {
  const auto session = answer("\n\n");
  EXPECT_EQ(session.config, (LaunchConfig{.cpu = true, .num_processes = 1}));
  EXPECT_THAT(session.shown, Not(HasSubstr("GPU")));
}

TEST(Questionnaire, OneProcessOnTheCpuIsNotAskedForGpus) {
  const auto session = answer("One process\nyes\n1\n", {.num_gpus = 1});
  EXPECT_EQ(
      session.config,
      (LaunchConfig{
          .cpu = true, .mixed_precision = "bf16", .num_processes = 1}));
  EXPECT_THAT(session.shown, Not(HasSubstr("GPUs on this machine")));
  EXPECT_THAT(session.shown, Not(HasSubstr("fp16")));
}

TEST(Questionnaire, SeveralProcessesOnTheCpu) {
  const auto session = answer("1\n\nyes\nno\n4\nno\nno\n0\n");
  EXPECT_EQ(
      session.config,
      (LaunchConfig{.cpu = true, .num_processes = 4, .debug = true}));
}

TEST(Questionnaire, MpirunWithItsHostFile) {
  EXPECT_EQ(
      answer("1\n\n\nyes\n\n2\n\n\n0\n").config.mpirun_hostfile,
      "/home/x/hostfile");
  EXPECT_EQ(answer("1\n\n\nyes\n/h\n2\n\n\n0\n").config.mpirun_hostfile, "/h");
}

TEST(Questionnaire, AsksHowToShardIfRequested) {
  const LaunchConfig expected = {
      .cpu = true,
      .num_processes = 2,
      .use_fsdp = true,
      .fsdp_version = 2,
      .fsdp_reshard_after_forward = "true",
      .fsdp_auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
      .fsdp_transformer_layer_cls_to_wrap = "BertLayer",
      .fsdp_activation_checkpointing = "false"};
  EXPECT_EQ(
      answer("1\n\n\nno\n2\nyes\nyes\n0\nBertLayer\nno\n0\n").config, expected);
  const auto by_size =
      answer("1\n\n\nno\n2\nyes\nno\n1\n1000\nyes\n0\n").config;
  EXPECT_EQ(by_size.fsdp_min_num_params, 1000);
  EXPECT_EQ(by_size.fsdp_reshard_after_forward, "false");
}

TEST(Questionnaire, AsksForDeepSpeedsConfigurationOrItsFile) {
  EXPECT_EQ(
      answer("1\n\n\nno\n2\nno\nyes\n\n4\n3\n2\nmuch\n0.5\n0\n").config,
      (LaunchConfig{
          .cpu = true,
          .num_processes = 2,
          .gradient_accumulation_steps = 2,
          .use_deepspeed = true,
          .zero_stage = 3,
          .gradient_clipping = "0.5"}));
  // The file says in which precision.
  EXPECT_EQ(
      answer("1\n\n\nno\n2\nno\nyes\nds.json\n").config,
      (LaunchConfig{
          .cpu = true,
          .num_processes = 2,
          .use_deepspeed = true,
          .deepspeed_config_file = "ds.json"}));
}

TEST(Questionnaire, SeveralGpusOfOneMachine) {
  const auto session =
      answer("2\n1\nno\n\nno\nno\n0,2\nyes\n2\n", {.num_gpus = 4});
  EXPECT_EQ(
      session.config,
      (LaunchConfig{
          .multi_gpu = true,
          .mixed_precision = "bf16",
          .num_processes = 4,
          .gpu_ids = {"0", "2"},
          .enable_cpu_affinity = true}));
}

TEST(Questionnaire, SeveralMachines) {
  const auto session =
      answer("2\n2\n1\n10.0.0.1\n29501\n\n\n\n\n\n\n0\n", {.num_gpus = 8});
  EXPECT_EQ(
      session.config,
      (LaunchConfig{
          .multi_gpu = true,
          .num_processes = 16,
          .num_machines = 2,
          .machine_rank = 1,
          .main_process_ip = "10.0.0.1",
          .main_process_port = 29501}));
}

TEST(Questionnaire, AsksForTheRankAsANumberInsteadOfALongMenu) {
  const auto session = answer("1\n64\n64\n63\nnode0\n\n\n\n\n\n\n0\n").config;
  EXPECT_EQ(session.machine_rank, 63);
  EXPECT_EQ(session.num_processes, 64);
}

TEST(Questionnaire, ProposesTheGpusThatAreThere) {
  EXPECT_TRUE(answer("\n\n\n\n\n\n\n\n\n", {.num_gpus = 2}).config.multi_gpu);
  EXPECT_FALSE(answer("\n\n\n\n\n", {.num_gpus = 1}).config.multi_gpu);
}

TEST(Questionnaire, RepeatsTheQuestionAfterAnInvalidAnswer) {
  const auto session = answer(
      "seven\n2\nmany\n1\nperhaps\nno\n1\n3\n2\nno\nno\nfirst\n0,1\nno\n"
      "3\n2\n",
      {.num_gpus = 2});
  EXPECT_EQ(session.config.num_processes, 2);
  for (const char* part :
       {"Please enter a number from 0 to 2.",
        "Please enter a whole number from 1 to 4096 or a range such as 2:4.",
        "Please enter yes or no.",
        "Please enter a number of at least 2.",
        "Please enter at most 2, one process per GPU.",
        "Please enter 'all', or GPU indices"}) {
    EXPECT_THAT(session.shown, HasSubstr(part));
  }
}

TEST(Questionnaire, ShardsOnGpusToo) {
  const auto config =
      answer("2\n1\nno\n\nyes\nyes\n2\nno\n\nno\n0\n", {.num_gpus = 2}).config;
  EXPECT_TRUE(config.multi_gpu);
  EXPECT_TRUE(config.use_fsdp);
  EXPECT_EQ(config.fsdp_auto_wrap_policy, "NO_WRAP");
}

TEST(Questionnaire, WantsAsManyProcessesOnEachMachine) {
  const auto session = answer("1\n3\n0\nnode0\n\n\n\n2\n4\n6\n\n\n\n");
  EXPECT_EQ(session.config.num_processes, 6);
  EXPECT_THAT(session.shown, HasSubstr("Please enter a number of at least 3."));
  EXPECT_THAT(
      session.shown,
      HasSubstr("Please enter a multiple of 3, the number of machines."));
}

TEST(Questionnaire, ProposesTheValuesSoFar) {
  const LaunchConfig present = {
      .cpu = true,
      .mixed_precision = "bf16",
      .num_processes = 4,
      .num_machines = 2,
      .machine_rank = 1,
      .main_process_ip = "node0",
      .main_process_port = 29777,
      .log_dir = "logs",
      .debug = true,
      .gradient_accumulation_steps = 8,
      .use_deepspeed = true,
      .zero_stage = 3,
      .gradient_clipping = "0.5"};
  const auto session = answer(
      std::string(15, '\n'),
      {.num_gpus = 0, .present = present, .home = "/home/x"});
  EXPECT_EQ(session.config, present);
  // One machine needs no address, and one process no sharding.
  const auto alone =
      answer("0\n\n", {.num_gpus = 0, .present = present, .home = "/home/x"});
  EXPECT_EQ(
      alone.config,
      (LaunchConfig{
          .cpu = true,
          .mixed_precision = "bf16",
          .num_processes = 1,
          .log_dir = "logs",
          .debug = true,
          .gradient_accumulation_steps = 8}));
}

TEST(Questionnaire, NeedsAllItsAnswers) {
  EXPECT_THROW(answer("1\n1\n"), ConfigError);
  EXPECT_THROW(answer(""), ConfigError);
}

TEST(DefaultConfig, UsesEveryGpuOrTheCpu) {
  EXPECT_EQ(
      default_config(0, "no"), (LaunchConfig{.cpu = true, .num_processes = 1}));
  EXPECT_EQ(
      default_config(1, "fp16"),
      (LaunchConfig{.mixed_precision = "fp16", .num_processes = 1}));
  EXPECT_EQ(
      default_config(8, "bf16"),
      (LaunchConfig{
          .multi_gpu = true, .mixed_precision = "bf16", .num_processes = 8}));
  EXPECT_THROW(default_config(0, "fp8"), ConfigError);
}

} // namespace
} // namespace accelerate
