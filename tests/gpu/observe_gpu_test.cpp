// SPDX-License-Identifier: Apache-2.0
// Step times, profile and journal of a run on a GPU.
#include <accelerate/accelerate.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>

#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using testing::TempDir;

class ObservationOnGpu : public ::testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;

  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU";
    }
    accelerator.emplace();
    torch::nn::Linear model(4096, 4096);
    net.emplace(accelerator->prepare(model));
    adamw.emplace(model->parameters());
    optimizer.emplace(accelerator->prepare(*adamw));
    input = torch::randn({8192, 4096}, accelerator->device());
  }
  torch::Tensor step(const torch::Tensor& x) {
    auto loss = (*net)(x).square().mean();
    accelerator->backward(loss);
    optimizer->step();
    optimizer->zero_grad();
    return loss.detach();
  }
  double seconds_of(const std::function<void()>& work) {
    torch::cuda::synchronize();
    const auto begin = Clock::now();
    work();
    torch::cuda::synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// Waits until the device has reported this many steps, which other users of
  /// it may delay.
  StepTimes times_of(int64_t num_steps) const {
    EXPECT_TRUE(testing::eventually(
        [&] { return accelerator->step_times().num_steps >= num_steps; }));
    return accelerator->step_times();
  }

  std::optional<Accelerator> accelerator;
  std::optional<PreparedModel<torch::nn::LinearImpl>> net;
  std::optional<optim::AdamW> adamw;
  std::optional<PreparedOptimizer> optimizer;
  torch::Tensor input;
};

TEST_F(ObservationOnGpu, StepTimesAreTheDevices) {
  constexpr int64_t kSteps = 20;
  step(input);
  const auto before = times_of(1);
  const double wall = seconds_of([&] {
    for (int64_t i = 0; i < kSteps; ++i) {
      step(input);
    }
  });
  const auto times = times_of(1 + kSteps);
  ASSERT_EQ(times.num_steps - before.num_steps, kSteps);
  const double computed = times.sum.forward + times.sum.backward -
                          before.sum.forward - before.sum.backward;
  // Three large products per step; the host queues them in microseconds.
  EXPECT_GE(computed, 0.6 * wall);
  EXPECT_LE(times.sum.total() - before.sum.total(), 1.1 * wall);
}

TEST_F(ObservationOnGpu, ACapturedStepIsOnePart) {
  auto captured =
      accelerator->capture([&](const torch::Tensor& x) { return step(x); });
  for (int i = 0; i < 5; ++i) {
    captured(input);
  }
  torch::cuda::synchronize();
  const auto before = accelerator->step_times();
  for (int i = 0; i < 5; ++i) {
    captured(input);
  }
  torch::cuda::synchronize();
  const auto times = accelerator->step_times();
  ASSERT_EQ(times.num_steps - before.num_steps, 5);
  EXPECT_GT(times.sum.captured, before.sum.captured);
  EXPECT_EQ(times.sum.forward, before.sum.forward);
  EXPECT_EQ(times.sum.backward, before.sum.backward);
}

TEST_F(ObservationOnGpu, AProfileHasKernelsAndMemory) {
  const TempDir folder;
  step(input);
  auto profile = accelerator->profile(
      {.profile_memory = true, .output_trace_dir = folder.path()});
  step(input);
  torch::cuda::synchronize();
  profile.stop();
  ASSERT_FALSE(profile.operators().empty());
  // A kernel, which is sorted first.
  EXPECT_GT(profile.operators().front().device_ms, 0);
  EXPECT_THAT(profile.operators().front().name, Not(HasSubstr("accelerate::")));
  ASSERT_EQ(profile.traces().size(), 1U);
  const auto trace = read_file(profile.traces()[0]);
  EXPECT_THAT(trace, HasSubstr("\"cat\": \"kernel\""));
  EXPECT_THAT(trace, HasSubstr("\"memory of cuda:0\""));
}

TEST_F(ObservationOnGpu, TheJournalSaysHowBusyTheDeviceIs) {
  const TempDir folder;
  accelerator->init_trackers(
      "run", {.log_with = {"jsonl"}, .logging_dir = folder.path()});
  const auto file = folder.path() / "run" / "ranks" / "rank_0.jsonl";
  const auto end = Clock::now() + std::chrono::seconds(30);
  std::string lines;
  do {
    for (int i = 0; i < 100; ++i) {
      step(input);
    }
    torch::cuda::synchronize();
    lines = read_file(file);
  } while (lines.find("\"device_busy\"") == std::string::npos &&
           Clock::now() < end);
  EXPECT_THAT(lines, HasSubstr("\"device_busy\""));
  EXPECT_THAT(lines, HasSubstr("\"device_memory\""));
}

} // namespace
} // namespace accelerate
