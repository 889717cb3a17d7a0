// SPDX-License-Identifier: Apache-2.0
#include "core/verify/comparison.h"
#include "core/verify/rank_agreement.h"

#include <gmock/gmock.h>

#include <fstream>
#include <limits>

#include "accelerate/error.h"
#include "support/temp_dir.h"

namespace accelerate::verify {
namespace {

using accelerate::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// A tensor whose sketch is that of a constant with the given norm.
TensorRecord tensor(const std::string& name, double norm, int64_t size = 100) {
  TensorRecord record{
      .name = name,
      .num_elements = size,
      .num_dimensions = 2,
      .is_trained = true,
      .epsilon = 0x1p-23};
  record.sketch.squares = norm * norm;
  record.sketch.sums.fill(norm);
  return record;
}

UpdateRecord update(double gradient, double parameter, double loss = 1) {
  return {
      .learning_rates = {0.1},
      .batches =
          {{.loss = loss,
            .num_samples = 4,
            .leaves = {{.num_elements = 16, .sum = 8, .num_valid = 16}}}},
      .gradients = {tensor("weight", gradient)},
      .parameters = {tensor("weight", parameter)},
      .peak_memory = 5'000'000};
}

ProcessRecord process(int rank, std::vector<UpdateRecord> updates) {
  return {
      .rank = rank,
      .num_ranks = 2,
      .num_data_ranks = 2,
      .initial = {tensor("weight", 10)},
      .updates = std::move(updates),
      .is_begun = true};
}

/// The record of one process that trained on the samples of two.
ProcessRecord reference(UpdateRecord only) {
  only.batches[0].num_samples = 8;
  only.batches[0].leaves[0] = {.num_elements = 32, .sum = 16, .num_valid = 32};
  return process(0, {std::move(only)});
}

std::vector<ProcessRecord> two(const UpdateRecord& of_each) {
  return {process(0, {of_each}), process(1, {of_each})};
}

TEST(Compare, AgreesUpToRounding) {
  const auto run = two(update(1, 9));
  const auto verdict = compare(run, reference(update(1 + 1e-6, 9)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kAgrees);
  EXPECT_THAT(
      verdict.lines,
      ElementsAre(
          "1 step on 2 processes agree with one process",
          HasSubstr("loss"),
          HasSubstr("largest relative difference 1e-06 in 'weight'"),
          HasSubstr("parameters"),
          "  peak memory 5 MB on rank 0, 5 MB on rank 1; 5 MB in one process"));
}

TEST(Compare, NamesTheGradientThatDiffers) {
  const auto verdict =
      compare(two(update(1, 9)), reference(update(1.01, 9)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kDisagrees);
  EXPECT_THAT(
      verdict.lines[0],
      StartsWith(
          "Step 1: the gradient of 'weight' differs from that of one process. "
          "The relative difference is 0.0099"));
}

TEST(Compare, RecognisesAFactor) {
  const auto verdict = compare(two(update(2, 9)), reference(update(1, 9)), 1);
  ASSERT_EQ(verdict.lines.size(), 2u);
  EXPECT_THAT(
      verdict.lines[1], HasSubstr("all gradients are 2 times those of one"));
}

// A loss that is a sum divided by a constant is right, but one that is a sum is
// not, and both have this factor.
TEST(Compare, DoesNotJudgeTheInverseOfTheNumberOfProcesses) {
  const auto verdict =
      compare(two(update(1, 9, 1)), reference(update(2, 8, 2)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
  EXPECT_THAT(
      verdict.lines,
      ElementsAre(
          StartsWith("Step 1: the gradient of 'weight' differs"),
          "All gradients are 1/2 of those of a single process",
          HasSubstr("batches that are 2 times as large. If the loss is a sum "
                    "over the batch, use the mean")));
}

TEST(Compare, DoesNotJudgeThisFactorInTheLossAlone) {
  const auto verdict =
      compare(two(update(1, 9, 1)), reference(update(1, 9, 2)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
  EXPECT_THAT(
      verdict.lines[0],
      StartsWith("Step 1: the loss is 1/2 of that of a single process. The "
                 "gradients agree"));
}

TEST(Compare, IgnoresTermsOfTheLossWithoutGradients) {
  const auto verdict =
      compare(two(update(1, 9, 1)), reference(update(1, 9, 1.3)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kAgrees);
  EXPECT_THAT(
      verdict.lines[1], HasSubstr("0.23. It does not count, because the "));
}

TEST(Compare, CallsNoFactorWhatOnlyLooksLikeOne) {
  auto run = two(update(1, 9));
  auto other = update(1.01, 9);
  for (auto* of : {&run[0].updates[0], &run[1].updates[0]}) {
    of->gradients.push_back(tensor("head.weight", 1));
  }
  other.gradients.push_back(tensor("head.weight", 0.99));
  const auto verdict = compare(run, reference(other), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kDisagrees);
  EXPECT_THAT(verdict.lines[1], Not(HasSubstr("times those")));
}

TEST(Compare, SuspectsStateOfAProcessIfTheFirstStepAgrees) {
  auto run = two(update(1, 9));
  auto other = reference(update(1, 9));
  for (auto* process : {&run[0], &run[1], &other}) {
    process->updates.push_back(process->updates[0]);
    process->updates[1].gradients.push_back(tensor("head.weight", 1));
  }
  other.updates[1].gradients = {tensor("weight", 2), tensor("head.weight", 9)};
  const auto verdict = compare(run, other, 2);
  EXPECT_EQ(verdict.outcome, Outcome::kDisagrees);
  EXPECT_THAT(
      verdict.lines[1],
      StartsWith("Likely mistake: step 1 agrees, so each process keeps values "
                 "of its own between steps"));
}

TEST(Compare, CountsElementsThatAreNotZero) {
  auto run = two(update(1, 9));
  for (auto& process : run) {
    auto& leaf = process.updates[0].batches[0].leaves[0];
    leaf.num_nonzero = 10 + 2 * process.rank;
    process.updates[0].gradients.push_back(tensor("bias", 0.5));
  }
  // 10 labels with a mean loss of 1, and 12 with a mean of 2.
  run[1].updates[0].batches[0].loss = 2;
  auto other = update(1.2, 9, 34.0 / 22);
  other.gradients.push_back(tensor("bias", 0.4));
  const auto verdict = compare(run, reference(other), 1);
  EXPECT_THAT(
      verdict.lines[1],
      HasSubstr("elements that are not 0: 10 on rank 0, 12 on rank 1"));
}

TEST(Compare, RecognisesUnequalCounts) {
  auto run = two(update(1, 9));
  for (auto& process : run) {
    auto& leaf = process.updates[0].batches[0].leaves[0];
    leaf.has_ignored = true;
    leaf.num_valid = 10 + 2 * process.rank;
    process.updates[0].gradients.push_back(tensor("bias", 0.5));
  }
  // 10 labels with a mean loss of 1, and 12 with a mean of 2.
  run[1].updates[0].batches[0].loss = 2;
  auto other = update(1.2, 9, 34.0 / 22);
  other.gradients.push_back(tensor("bias", 0.4));
  const auto verdict = compare(run, reference(other), 1);
  ASSERT_EQ(verdict.lines.size(), 2u);
  EXPECT_THAT(
      verdict.lines[1], HasSubstr("labels: 10 on rank 0, 12 on rank 1"));
}

// Such as the last batch of an epoch.
TEST(Compare, RecognisesCountsThatBecomeUnequalLater) {
  auto run = two(update(1, 9));
  auto other = reference(update(1, 9));
  for (auto* process : {&run[0], &run[1], &other}) {
    process->updates.push_back(process->updates[0]);
    process->updates[1].gradients.push_back(tensor("bias", 0.5));
  }
  // 8 samples with a mean loss of 1, and 2 with a mean of 2.
  run[0].updates[1].batches[0].num_samples = 8;
  run[1].updates[1].batches[0].num_samples = 2;
  run[1].updates[1].batches[0].loss = 2;
  other.updates[1].batches[0].loss = 1.2;
  other.updates[1].batches[0].num_samples = 10;
  other.updates[1].gradients = {tensor("weight", 1.2), tensor("bias", 0.4)};
  const auto verdict = compare(run, other, 2);
  EXPECT_EQ(verdict.outcome, Outcome::kDisagrees);
  EXPECT_THAT(verdict.lines[1], HasSubstr("samples: 8 on rank 0, 2 on rank 1"));
}

TEST(Compare, DoesNotBlameCountsThatExplainNothing) {
  auto run = two(update(1, 9));
  for (auto& process : run) {
    auto& leaf = process.updates[0].batches[0].leaves[0];
    leaf.has_ignored = true;
    leaf.num_valid = 10 + 2 * process.rank;
    process.updates[0].gradients.push_back(tensor("bias", 0.5));
  }
  auto other = update(1.2, 9, 3);
  other.gradients.push_back(tensor("bias", 0.4));
  const auto verdict = compare(run, reference(other), 1);
  ASSERT_EQ(verdict.lines.size(), 2u);
  EXPECT_THAT(
      verdict.lines[1],
      HasSubstr("the loss of a batch is not the mean of the losses"));
}

TEST(DifferenceOnSameBatch, NamesTheFirstModule) {
  auto run = two(update(1, 9));
  EXPECT_EQ(difference_on_same_batch(run), "");
  run[1].updates[0].batches[0].loss = 2;
  EXPECT_THAT(
      difference_on_same_batch(run), HasSubstr("the model or the loss"));
  for (auto& process : run) {
    process.outputs = {
        tensor("embed", 1), tensor("noise", 1 + process.rank), tensor("", 3)};
  }
  EXPECT_THAT(
      difference_on_same_batch(run),
      StartsWith("the module 'noise' computes different values from the same "
                 "batch on rank 1 than on rank 0"));
}

TEST(Compare, NoticesAnotherUpdateFromTheSameGradient) {
  const auto verdict = compare(two(update(1, 9)), reference(update(1, 5)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kDisagrees);
  EXPECT_THAT(verdict.lines[0], HasSubstr("the update of 'weight' differs"));
}

// Adam turns rounding in the gradient of a key bias into a full step.
TEST(Compare, DoesNotCompareUpdatesOfBiases) {
  auto run = two(update(1, 9));
  auto other = update(1, 5);
  for (auto* of : {&run[0].updates[0], &run[1].updates[0], &other}) {
    of->parameters[0].num_dimensions = 1;
  }
  EXPECT_EQ(compare(run, reference(other), 1).outcome, Outcome::kAgrees);
}

TEST(Compare, TreatsNanAsADifference) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(
      compare(two(update(nan, 9)), reference(update(1, 9)), 1).outcome,
      Outcome::kDisagrees);
}

TEST(Compare, AddsUpShards) {
  auto run = two(update(1, 9));
  for (auto& process : run) {
    process.initial[0] = tensor("weight", 5);
    for (auto* list :
         {&process.updates[0].gradients, &process.updates[0].parameters}) {
      (*list)[0].is_divided = true;
    }
    process.initial[0].is_divided = true;
  }
  EXPECT_EQ(
      compare(run, reference(update(2, 18)), 1).outcome, Outcome::kAgrees);
}

TEST(Compare, DoesNotCompareProgramsThatDrawRandomNumbers) {
  auto run = two(update(1, 9));
  run[0].obstacles.push_back({.text = "draws noise"});
  auto verdict = compare(run, reference(update(2, 9)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
  EXPECT_EQ(verdict.lines.back(), "draws noise");
  // It does not matter if the steps agree.
  verdict = compare(run, reference(update(1, 9)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kAgrees);
  run[0].obstacles[0].only_excuses = false;
  verdict = compare(run, reference(update(1, 9)), 1);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
}

TEST(Compare, ExplainsOtherSamples) {
  auto other = reference(update(2, 9));
  other.updates[0].batches[0].leaves[0].sum = 17;
  const auto verdict = compare(two(update(1, 9)), other, 1);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
  EXPECT_THAT(verdict.lines.back(), HasSubstr("return different values"));
}

TEST(Compare, ExplainsBatchNorm) {
  auto other = reference(update(2, 9));
  other.updates[0].changed_buffers = {"bn.running_mean"};
  const auto verdict = compare(two(update(1, 9)), other, 1);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
  EXPECT_THAT(verdict.lines.back(), HasSubstr("'bn' is a BatchNorm"));
}

TEST(Compare, DoesNotCompareLoopsOfDifferentLength) {
  auto other = reference(update(1, 9));
  other.updates.push_back(other.updates[0]);
  const auto verdict = compare(two(update(1, 9)), other, 2);
  EXPECT_EQ(verdict.outcome, Outcome::kNotComparable);
  EXPECT_THAT(
      verdict.lines[0], HasSubstr("made 1 step, but a single process made 2"));
}

TEST(CheckRanks, FindsNothingInEqualRanks) {
  EXPECT_THAT(check_ranks(two(update(1, 9))).lines, IsEmpty());
}

TEST(CheckRanks, NamesRanksWhoseTensorsDiffer) {
  auto run = two(update(1, 9));
  run[1].updates[0].gradients[0].sketch.sums[3] += 1e-9;
  auto verdict = check_ranks(run);
  EXPECT_EQ(verdict.outcome, Outcome::kDisagrees);
  EXPECT_THAT(
      verdict.lines,
      ElementsAre(StartsWith(
          "Step 1: the gradient of 'weight' on rank 1 differs from rank 0's")));
  run = two(update(1, 9));
  run[1].updates[0].parameters[0].sketch.sums[3] += 1;
  EXPECT_THAT(check_ranks(run).lines[0], HasSubstr("after the step, 'weight'"));
  for (auto& process : run) {
    process.updates[0].parameters[0].is_trained = false;
  }
  EXPECT_THAT(
      check_ranks(run).lines, ElementsAre(HasSubstr("the frozen parameter")));
  run = two(update(1, 9));
  for (auto& process : run) {
    process.updates[0].buffers = {tensor("mean", 1 + process.rank)};
  }
  EXPECT_THAT(check_ranks(run).lines[0], HasSubstr("the buffer 'mean'"));
}

TEST(CheckRanks, FindsAShardedSampler) {
  auto run = two(update(1, 9));
  run[0].orders = {"1", "2"};
  run[1].orders = {"1", "3"};
  EXPECT_THAT(
      check_ranks(run).lines,
      ElementsAre(HasSubstr("The samplers of ranks 0 and 1 return different")));
}

TEST(ProcessRecords, AreReadAsWritten) {
  const TempDir folder;
  const auto file = record_file(folder.path(), 3);
  auto written = update(std::numeric_limits<double>::infinity(), 9);
  written.changed_buffers = {"mean"};
  {
    RecordWriter writer(file);
    writer.begin(3, 4, 2);
    writer.add_initial({tensor("weight", 1)});
    writer.add_update(written);
    writer.add_problem("once");
    writer.add_problem("once");
    writer.add_obstacle({.only_excuses = false, .text = "noise"});
    writer.add_order("7");
  }
  const auto read = read_process_record(file);
  EXPECT_TRUE(read.is_begun);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.num_ranks, 4);
  EXPECT_EQ(read.num_data_ranks, 2);
  EXPECT_THAT(read.initial, ElementsAre(tensor("weight", 1)));
  EXPECT_THAT(read.updates, ElementsAre(written));
  EXPECT_THAT(read.problems, ElementsAre("once"));
  EXPECT_THAT(
      read.obstacles,
      ElementsAre(Obstacle{.only_excuses = false, .text = "noise"}));
  EXPECT_THAT(read.orders, ElementsAre("7"));
}

TEST(ProcessRecords, OfKilledProcessesEndEarly) {
  const TempDir folder;
  const auto file = record_file(folder.path(), 0);
  {
    RecordWriter writer(file);
    writer.begin(0, 2, 2);
  }
  std::ofstream(file, std::ios::app) << R"({"event":"upd)";
  EXPECT_TRUE(read_process_record(file).is_begun);
  std::ofstream(file, std::ios::app) << "\n";
  EXPECT_THROW(read_process_record(file), DataError);
}

} // namespace
} // namespace accelerate::verify
