// SPDX-License-Identifier: Apache-2.0
// Capture without a device that supports it; tests/gpu has the rest.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "run/training.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using torch::Tensor;

TEST(Capture, OnTheCpuRunsTheFunctionAndSaysSoOnce) {
  torch::nn::Linear model(1, 1);
  optim::AdamW adamw(model->parameters(), {});
  Accelerator accelerator({.cpu = true});
  auto [net, opt] = accelerator.prepare(model, adamw);
  ::testing::internal::CaptureStderr();
  int num_calls = 0;
  auto step = accelerator.capture(
      [&, &net = net, &opt = opt](const std::vector<Tensor>& batch) {
        ++num_calls;
        auto loss = torch::mse_loss(net(batch[0]), batch[1]);
        accelerator.backward(loss);
        opt.step();
        opt.zero_grad();
        return std::make_pair(loss, batch[0]);
      });
  const std::vector<Tensor> batch = {torch::ones({2, 1}), torch::ones({2, 1})};
  std::vector<double> losses;
  for (int i = 0; i < 5; ++i) {
    const auto [loss, x] = step(batch);
    EXPECT_FALSE(loss.requires_grad());
    EXPECT_TRUE(torch::equal(x, batch[0]));
    losses.push_back(loss.item<double>());
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      said,
      "[capture] The step is not recorded: cpu has no device graphs. Use a "
      "GPU\n");
  EXPECT_THAT(step.refusal(), StartsWith("cpu has no device graphs"));
  EXPECT_EQ(num_calls, 5);
  EXPECT_EQ(step.num_graphs(), 0u);
  EXPECT_EQ(step.num_replays(), 0u);
  EXPECT_LT(losses.back(), losses.front());
}

TEST(Capture, TakesFunctionsThatReturnNothing) {
  Accelerator accelerator({.cpu = true});
  ::testing::internal::CaptureStderr();
  double seen = 0;
  auto step = accelerator.capture(
      [&](const Tensor& x) { seen += x.sum().item<double>(); });
  step(torch::ones({3}));
  step(torch::ones({4}));
  EXPECT_EQ(seen, 7);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("[capture]"));
}

} // namespace
} // namespace accelerate
