// SPDX-License-Identifier: Apache-2.0
// `accelerate verify` on C++ programs: it finds each mistake and passes correct
// programs.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/str.h"
#include "support/long_run.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

ProcessResult verify(
    const std::vector<std::string>& options,
    const std::string& mistake,
    const TempDir& folder) {
  std::vector<std::string> command = {
      TEST_BIN_DIR "/accelerate", "verify", "--cpu", "--quiet"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {TEST_BIN_DIR "/verified_steps", mistake});
  return run_process(command, {{"TMPDIR", folder.path().string()}}, kLimit);
}

/// The whole grid runs on four processes only in a long run.
std::vector<int> numbers_of_processes() {
  return is_long_run() ? std::vector<int>{2, 4} : std::vector<int>{2};
}

class CorrectProgram
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(CorrectProgram, Passes) {
  const auto& [name, num_processes] = GetParam();
  const TempDir folder;
  const auto result = verify(
      {"--num_processes", std::to_string(num_processes), "--steps", "3"},
      name,
      folder);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr(str_cat(
              "3 steps on ",
              num_processes,
              " processes agree with one process")),
          HasSubstr("gradients   largest relative difference "),
          HasSubstr("parameters  no difference beyond rounding"),
          HasSubstr("peak memory "),
          ContainsRegex("time        [0-9.]+ s; [0-9.]+ s in one process")));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(
    Verify,
    CorrectProgram,
    ::testing::Combine(
        ::testing::Values(
            "right",
            "accumulate",
            "weighted",
            "shard",
            "shard_state",
            "clip",
            "schedule",
            "scaled_rate",
            "global_count",
            "sync_norm"),
        ::testing::ValuesIn(numbers_of_processes())));

struct Mistake {
  const char* name;
  const char* report;
  /// On four processes, if the report differs.
  const char* report_of_four = nullptr;
};
void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

class WrongProgram : public ::testing::TestWithParam<std::tuple<Mistake, int>> {
};

TEST_P(WrongProgram, IsNamed) {
  const auto& [mistake, num_processes] = GetParam();
  const TempDir folder;
  const auto result = verify(
      {"--num_processes", std::to_string(num_processes), "--steps", "3"},
      mistake.name,
      folder);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  const bool is_other = num_processes == 4 && mistake.report_of_four != nullptr;
  EXPECT_THAT(
      result.out,
      HasSubstr(is_other ? mistake.report_of_four : mistake.report));
}

INSTANTIATE_TEST_SUITE_P(
    Verify,
    WrongProgram,
    ::testing::Combine(
        ::testing::Values(
            Mistake{
                "unequal",
                "each rank averages its loss over its own count, but the "
                "counts differ (labels: 35 on rank 0, 43 on rank 1"},
            Mistake{
                "raw_model",
                "The gradients of 'model' were not synchronised"},
            Mistake{"raw_optimizer", "no prepared optimizer made a step"},
            Mistake{"raw_loader", "a batch of a loader that was not prepared"},
            Mistake{
                "buffer",
                "the buffer 'mean' on rank 1 differs from rank 0's",
                "the buffer 'mean' on ranks 1, 2 and 3 differs from rank 0's"},
            Mistake{
                "rank_seed",
                "computes different values from the same batch on rank 1 than "
                "on rank 0"},
            Mistake{
                "adapter",
                "A tensor of shape [24, 24] is trained, but does not belong to "
                "any prepared model"},
            Mistake{
                "raw_backward",
                "gradients that accelerator.backward() did not compute"},
            Mistake{
                "extra_backward",
                "gradients that accelerator.backward() did not compute"},
            Mistake{
                "changed",
                "the gradient of 'head.weight' on rank 1 differs from rank "
                "0's"},
            Mistake{
                "sampler",
                "The samplers of ranks 0 and 1 return different samples"},
            Mistake{
                "frozen",
                "the frozen parameter 'frozen.weight' on rank 1 differs from "
                "rank 0's",
                "the frozen parameter 'frozen.weight' on ranks 1, 2 and 3 "
                "differs from rank 0's"}),
        ::testing::ValuesIn(numbers_of_processes())));

TEST(Verify, PassesOnFourProcesses) {
  const TempDir folder;
  const auto result =
      verify({"--num_processes", "4", "--steps", "2"}, "shard", folder);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 steps on 4 processes agree"));
}

TEST(Verify, NeedsSeveralProcesses) {
  const TempDir folder;
  const auto result = verify({"--num_processes", "1"}, "right", folder);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("pass --num_processes 2 or more"));
}

TEST(Verify, RunsOnOneMachine) {
  const TempDir folder;
  const auto result = verify(
      {"--num_machines",
       "2",
       "--num_processes",
       "2",
       "--main_process_ip",
       "127.0.0.1"},
      "right",
      folder);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("pass --num_machines 1"));
}

TEST(Verify, NeedsAFolderForItsRecords) {
  const auto result = run_process(
      {TEST_BIN_DIR "/accelerate",
       "verify",
       "--cpu",
       "--num_processes",
       "2",
       "--no_python",
       "/bin/true"},
      {{"TMPDIR", "/nonexistent/folder"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("TMPDIR is not a folder. Set it to"));
}

TEST(Verify, SaysThatAProgramHasNoAccelerator) {
  const auto result = run_process(
      {TEST_BIN_DIR "/accelerate",
       "verify",
       "--cpu",
       "--num_processes",
       "2",
       "--no_python",
       "/bin/true"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("The program created no Accelerator"));
}

TEST(Verify, NeedsAProgram) {
  const auto result = run_process({TEST_BIN_DIR "/accelerate", "verify"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("accelerate verify [OPTIONS] train.py"));
}

TEST(Verify, OnlyShowsThePlanOfADryRun) {
  const TempDir folder;
  const auto result =
      verify({"--num_processes", "2", "--dry_run"}, "right", folder);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("[verify]")));
}

TEST(Verify, RejectsBadSteps) {
  const auto result = run_process(
      {TEST_BIN_DIR "/accelerate", "verify", "--steps", "0", "train.py"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--steps"));
}

TEST(Verify, EndsOnCtrlCWithoutAReport) {
  const TempDir folder;
  Subprocess process(
      {TEST_BIN_DIR "/accelerate",
       "verify",
       "--cpu",
       "--num_processes",
       "2",
       "--no_python",
       "/bin/sleep",
       "100"},
      {{"TMPDIR", folder.path().string()}});
  const auto begun = [&] { return !fs::is_empty(folder.path()); };
  ASSERT_TRUE(eventually(begun, kLimit));
  process.send(SIGINT);
  const auto result = process.wait(kLimit);
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.out << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("[verify]")));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

} // namespace
} // namespace accelerate::testing
