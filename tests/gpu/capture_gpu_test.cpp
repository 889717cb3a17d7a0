// SPDX-License-Identifier: Apache-2.0
// Captured steps beside the same steps uncaptured, from the same weights and
// the same random numbers.
#include <accelerate/accelerate.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>

#include "support/state.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(16, 32))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})))),
        drop(register_module("drop", torch::nn::Dropout(0.3))),
        second(register_module("second", torch::nn::Linear(32, 1))) {}
  Tensor forward(const Tensor& x) {
    return second(drop(torch::gelu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};
TORCH_MODULE(Net);

struct Setting {
  bool is_captured = true;
  AcceleratorOptions options = {};
  CaptureOptions capture = {};
  int64_t num_steps = 12;
  /// Rows of the batch of each step.
  std::function<int64_t(int64_t)> num_rows = [](int64_t) { return 8; };
  /// Inside of the function, on the host.
  std::function<void()> inside = [] {};
  /// After these many steps: put the state back that was taken two before.
  std::optional<int64_t> load_at = {};
};

struct Record {
  std::vector<double> losses;
  std::vector<Tensor> parameters;
  size_t num_graphs = 0, num_replays = 0;
  std::string refusal;
};

Record train(const Setting& setting) {
  torch::manual_seed(11);
  Net model;
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  Accelerator accelerator(setting.options);
  auto [net, opt] = accelerator.prepare(model, adamw);
  auto scheduler = accelerator.prepare(
      Scheduler(adamw, StepLR{.step_size = 3, .gamma = 0.5}));
  const auto function = [&, &net = net, &opt = opt](
                            const Tensor& x, const Tensor& y) {
    auto loss = torch::mse_loss(net(x), y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model->parameters(), 0.7);
    opt.step();
    opt.zero_grad();
    setting.inside();
    return loss;
  };
  auto step = accelerator.capture(function, setting.capture);
  Record record;
  StateDict saved;
  for (int64_t i = 0; i < setting.num_steps; ++i) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
    const auto x =
        torch::randn({setting.num_rows(i), 16}, generator).to(torch::kCUDA);
    const auto y = x.sum(1, true);
    const auto window = accelerator.accumulate(net);
    const auto loss = setting.is_captured ? step(x, y) : function(x, y);
    scheduler.step();
    record.losses.push_back(loss.item<double>());
    if (setting.load_at && i + 2 == *setting.load_at) {
      saved = testing::copy_of(accelerator.state().state_dict());
    }
    if (setting.load_at && i == *setting.load_at) {
      accelerator.state().load_state_dict(saved);
    }
  }
  const auto state = accelerator.state().state_dict();
  for (const auto& item : model->named_parameters()) {
    record.parameters.push_back(
        state.get<Tensor>("model." + item.key()).clone());
  }
  record.num_graphs = step.num_graphs();
  record.num_replays = step.num_replays();
  record.refusal = step.refusal();
  return record;
}

class CaptureOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU";
    }
  }
  /// Trains twice. A rate is a float in a captured step and a double in
  /// another one, and matrix products may split their sums differently.
  static Record expect_alike(Setting setting, double tolerance = 1e-4) {
    const auto captured = train(setting);
    setting.is_captured = false;
    const auto plain = train(setting);
    for (size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(captured.losses[i], plain.losses[i], tolerance) << i;
    }
    for (size_t i = 0; i < plain.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(
          captured.parameters[i], plain.parameters[i], tolerance, tolerance))
          << i;
    }
    return captured;
  }
};

TEST_F(CaptureOnGpu, AgreesWithDropoutClippingAndASchedule) {
  const auto captured = expect_alike({});
  EXPECT_EQ(captured.num_graphs, 1u);
  EXPECT_EQ(captured.num_replays, 10u);
  EXPECT_EQ(captured.refusal, "");
}

TEST_F(CaptureOnGpu, AgreesInBf16AndWithMasters) {
  // A loss of about 16 in bf16.
  expect_alike({.options = {.mixed_precision = Precision::kBf16}}, 0.05);
  const auto captured = expect_alike(
      {.options =
           {.mixed_precision = Precision::kBf16, .master_weights = true}},
      0.05);
  EXPECT_EQ(captured.num_replays, 10u);
}

TEST_F(CaptureOnGpu, MakesAGraphForEachShape) {
  const auto captured =
      expect_alike({.num_rows = [](int64_t i) { return i % 3 == 0 ? 5 : 8; }});
  EXPECT_EQ(captured.num_graphs, 2u);
  EXPECT_EQ(captured.num_replays, 8u);
}

TEST_F(CaptureOnGpu, KeepsNoMoreGraphsThanItMay) {
  const auto captured = expect_alike(
      {.capture = {.num_warmup = 1, .max_graphs = 1},
       .num_rows = [](int64_t i) { return i < 6 ? 5 : 8; }});
  EXPECT_EQ(captured.num_graphs, 1u);
  EXPECT_EQ(captured.num_replays, 10u);
}

TEST_F(CaptureOnGpu, AddsUpWindows) {
  for (const bool masters : {false, true}) {
    Setting setting{.num_steps = 24, .num_rows = [](int64_t i) {
                      return i % 5 == 0 ? 5 : 8;
                    }};
    setting.options.accumulation.num_steps = 3;
    if (masters) {
      setting.options.mixed_precision = Precision::kBf16;
      setting.options.master_weights = true;
    }
    const auto captured = expect_alike(setting, masters ? 0.05 : 1e-4);
    EXPECT_EQ(captured.refusal, "");
    EXPECT_GT(captured.num_replays, 8u);
  }
}

TEST_F(CaptureOnGpu, GoesOnFromLoadedState) {
  const auto captured = expect_alike({.load_at = 7});
  EXPECT_EQ(captured.refusal, "");
  EXPECT_EQ(captured.num_graphs, 1u);
}

TEST_F(CaptureOnGpu, RefusesAFunctionThatWaits) {
  ::testing::internal::CaptureStderr();
  const auto captured = expect_alike(
      {.inside = [] { torch::ones({1}, torch::kCUDA).item<float>(); }});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("[capture] the function waits for the device"));
  EXPECT_EQ(captured.num_replays, 0u);
}

TEST_F(CaptureOnGpu, LetsAModelWaitWhereItBegins) {
  // The captured run comes first.
  int64_t num_calls = 0;
  const auto captured = expect_alike({.inside = [&] {
    if (num_calls++ == 0) {
      torch::ones({1}, torch::kCUDA).item<float>();
    }
  }});
  EXPECT_EQ(captured.refusal, "");
  EXPECT_GT(captured.num_replays, 0u);
}

TEST_F(CaptureOnGpu, RefusesWhatCudaDoesNotRecord) {
  ::testing::internal::CaptureStderr();
  const auto captured =
      expect_alike({.inside = [] { torch::cuda::synchronize(); }});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(), HasSubstr("[capture] "));
  EXPECT_EQ(captured.num_replays, 0u);
  EXPECT_NE(captured.refusal, "");
}

TEST_F(CaptureOnGpu, RefusesOptimizersOfTheHostAndInputsOfTheCpu) {
  ::testing::internal::CaptureStderr();
  torch::nn::Linear model(1, 1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  Accelerator accelerator;
  auto [net, opt] = accelerator.prepare(model, sgd);
  EXPECT_THAT(
      accelerator.capture([](const Tensor& x) { return x; }).refusal(),
      HasSubstr("numbers of the host"));
  Accelerator other;
  auto step = other.capture([](const Tensor& x) { return x + 1; });
  EXPECT_TRUE(torch::equal(step(torch::ones({1})), torch::full({1}, 2.0f)));
  EXPECT_THAT(step.refusal(), HasSubstr("is on cpu"));
  ::testing::internal::GetCapturedStderr();
}

} // namespace
} // namespace accelerate
