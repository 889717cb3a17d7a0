// SPDX-License-Identifier: Apache-2.0
// Step times of a prepared loop, and the summary at its end.
#include "accelerate/observe/step_times.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <thread>

#include "accelerate/accelerator.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

constexpr auto kReading = 50ms;
constexpr int64_t kSteps = 4;

struct SlowToRead {
  at::Tensor get(int64_t /*index*/) const {
    std::this_thread::sleep_for(kReading);
    return torch::ones({2});
  }
  size_t size() const { return kSteps; }
};

StepTimes train(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  torch::nn::Linear model(2, 1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  DataLoader reader(SlowToRead(), {.batch_size = 1});
  auto [loader, net, optimizer] = accelerator.prepare(reader, model, sgd);
  for (auto& batch : loader) {
    accelerator.backward(net(batch).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  auto times = accelerator.step_times();
  accelerator.end_training();
  return times;
}

TEST(StepTimes, OfAPreparedLoopSayWhatLimitsIt) {
  ::testing::internal::CaptureStderr();
  const auto times = train({.cpu = true});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), IsEmpty());
  ASSERT_EQ(times.num_steps, kSteps);
  EXPECT_EQ(times.last.size(), static_cast<size_t>(kSteps));
  EXPECT_GE(
      times.sum.data, kSteps * std::chrono::duration<double>(kReading).count());
  EXPECT_GT(times.sum.forward, 0);
  EXPECT_GT(times.sum.backward, 0);
  EXPECT_GT(times.sum.optimizer, 0);
  EXPECT_THAT(
      times.summary(),
      AllOf(
          HasSubstr("4 steps of "),
          HasSubstr(" % of the step waits for data: raise num_workers")));
}

TEST(StepTimes, AreReportedAtTheEndIfRequested) {
  ::testing::internal::CaptureStderr();
  train({.cpu = true, .step_summary = true});
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      said,
      AllOf(
          HasSubstr("[step_times] 4 steps of "),
          HasSubstr(" % of the step waits for data: raise num_workers")));
  EXPECT_EQ(said.find("[step_times]"), said.rfind("[step_times]")) << said;
}

} // namespace
} // namespace accelerate
