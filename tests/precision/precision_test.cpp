// SPDX-License-Identifier: Apache-2.0
// Autocast and the gradient scaler, the latter against PyTorch's
// (tools/make_training_step_reference.py).
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

TEST(Precision, IsReadFromItsNames) {
  EXPECT_EQ(parse_precision("no"), Precision::kNo);
  EXPECT_EQ(parse_precision("bf16"), Precision::kBf16);
  EXPECT_EQ(parse_precision("fp16"), Precision::kFp16);
  EXPECT_THAT(
      [] { parse_precision("fp8"); },
      ThrowsMessage<ConfigError>(HasSubstr("fp8 is not supported")));
  EXPECT_THAT(
      [] { parse_precision("half"); },
      ThrowsMessage<ConfigError>(HasSubstr("must be no, fp16 or bf16")));
}

at::ScalarType type_of_product() {
  const auto a = torch::ones({2, 2});
  return torch::mm(a, a).scalar_type();
}

TEST(AutocastGuard, NestsAndCanBeOffInside) {
  EXPECT_EQ(type_of_product(), torch::kFloat);
  {
    const AutocastGuard outer(at::kCPU, Precision::kBf16);
    EXPECT_EQ(type_of_product(), torch::kBFloat16);
    {
      const AutocastGuard inner(at::kCPU, Precision::kNo);
      EXPECT_EQ(type_of_product(), torch::kFloat);
      const AutocastGuard innermost(at::kCPU, Precision::kFp16);
      EXPECT_EQ(type_of_product(), torch::kHalf);
    }
    EXPECT_EQ(type_of_product(), torch::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), torch::kFloat);
}

TEST(AutocastGuard, IsRestoredAfterAnException) {
  try {
    const AutocastGuard guard(at::kCPU, Precision::kBf16);
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(type_of_product(), torch::kFloat);
}

TEST(AutocastGuard, ForgetsCastWeightsWhenTheOutermostLeaves) {
  auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto product = [&] {
    const AutocastGuard guard(at::kCPU, Precision::kBf16);
    {
      const AutocastGuard inner(at::kCPU, Precision::kBf16);
      torch::mm(weight, weight);
    }
    return torch::mm(weight, weight).sum().item<float>();
  };
  EXPECT_EQ(product(), 8);
  {
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(product(), 32) << "a cast of the old weight was used";
}

TEST(GradScaler, FollowsPyTorchsUnderInfinities) {
  std::ifstream file(std::string(TEST_REFERENCE_DIR) + "/training_step.json");
  const auto expected = nlohmann::json::parse(file)["scaler"];
  const auto infinite = expected["infinite"].get<std::vector<int>>();
  const auto row = [](double phase, double b) {
    return torch::sin(phase + b * torch::arange(6, torch::kDouble))
        .to(torch::kFloat)
        .unsqueeze(0);
  };
  auto parameter = row(0, 1.0).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 0.1);
  GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
  for (int step = 0; step < 30; ++step) {
    if (step == 13) { // half-way, the state moves to another scaler
      GradScaler fresh;
      fresh.load_state_dict(scaler.state_dict());
      scaler = fresh;
    }
    // `grid(1, 6, a, b)` of the tool: its row index is 0.
    auto loss = (parameter * row(0.0, 0.5)).sum();
    const bool is_infinite =
        std::count(infinite.begin(), infinite.end(), step) > 0;
    if (is_infinite) {
      loss = loss * std::numeric_limits<float>::infinity();
    }
    scaler.scale(loss).backward();
    EXPECT_EQ(scaler.step(optimizer), !is_infinite) << step;
    scaler.update();
    parameter.mutable_grad() = Tensor();
    const auto i = static_cast<size_t>(step);
    EXPECT_EQ(scaler.current_scale(), expected["scales"][i].get<double>());
    const auto weights = torch::tensor(
        expected["weights"][i].get<std::vector<double>>(), torch::kDouble);
    // The same operators, and powers of two as scales: rounding is identical.
    EXPECT_TRUE(
        torch::equal(parameter.detach().to(torch::kDouble).flatten(), weights))
        << step;
  }
  EXPECT_EQ(
      scaler.state_dict().get<int64_t>("_growth_tracker"),
      expected["growth_tracker"].get<int64_t>());
}

TEST(GradScaler, UnscalesOncePerUpdateAndAsksTheOtherRanks) {
  int num_asked = 0;
  GradScaler scaler({.init_scale = 4}, [&](Tensor& flag) {
    ++num_asked;
    flag.fill_(1); // Another rank overflowed.
  });
  auto parameter = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, 0.1);
  scaler.scale(parameter.sum()).backward();
  scaler.unscale_(optimizer);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::ones({2})));
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_EQ(num_asked, 1);
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 2);
}

TEST(GradScaler, KeepsItsScaleUntilItIsUpdated) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  auto first = torch::ones({1}, torch::requires_grad());
  auto second = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD sgd1({first}, 0.1);
  torch::optim::SGD sgd2({second}, 0.1);
  scaler.scale(first.sum() + second.sum()).backward();
  scaler.unscale_(sgd1);
  scaler.unscale_(sgd2);
  scaler.step(sgd1);
  scaler.step(sgd2);
  EXPECT_EQ(scaler.current_scale(), 4);
  EXPECT_EQ(scaler.state_dict().get<double>("scale"), 8)
      << "what is saved goes on as this one does";
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 8);
}

TEST(GradScaler, NotesNoOwnerWithoutGradients) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 1});
  auto parameter = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, 0.1);
  scaler.scale(torch::ones({1}));
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.is_unscaled(&optimizer));
  scaler.scale(parameter.sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::ones({2})));
}

TEST(GradScaler, RecordsAnOwnerIfAnyRankHasGradients) {
  run_ranks(2, [](ProcessGroup group) {
    GradScaler scaler({.init_scale = 4}, [&](Tensor& flags) {
      group.all_reduce(flags, ReduceOp::kMax);
    });
    auto parameter = torch::ones({2}, torch::requires_grad());
    torch::optim::SGD optimizer({parameter}, 0.1);
    const auto loss = scaler.scale(parameter.sum());
    if (group.rank() == 1) {
      loss.backward();
    }
    scaler.unscale_(optimizer);
    EXPECT_TRUE(scaler.is_unscaled(&optimizer));
  });
}

TEST(GradScaler, ScalesGradientsAgainThatABackwardIsToAddTo) {
  GradScaler scaler({.init_scale = 4});
  auto parameter = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, 0.1);
  scaler.scale(parameter.sum()).backward();
  scaler.unscale_(optimizer);
  scaler.forget(&optimizer);
  scaler.scale_again({parameter.grad()});
  scaler.scale((2 * parameter).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({2}, 3.0f)));
}

TEST(GradScaler, OverflowOnOneRankSkipsTheStepOnAll) {
  run_ranks(2, [](ProcessGroup group) {
    GradScaler scaler({.init_scale = 4}, [&](Tensor& flag) {
      group.all_reduce(flag, ReduceOp::kMax);
    });
    auto parameter = torch::ones({2}, torch::requires_grad());
    torch::optim::SGD optimizer({parameter}, 0.1);
    for (const int culprit : {1, -1}) {
      const double factor =
          group.rank() == culprit ? std::numeric_limits<double>::infinity() : 1;
      scaler.scale(parameter.sum() * factor).backward();
      EXPECT_EQ(scaler.step(optimizer), culprit < 0);
      scaler.update();
      EXPECT_EQ(scaler.current_scale(), 2);
      parameter.mutable_grad() = Tensor();
    }
  });
}

TEST(GradScaler, RejectsFp16GradientsAndInvalidFactors) {
  auto parameter = torch::ones({2}, torch::kHalf).requires_grad_();
  torch::optim::SGD optimizer({parameter}, 0.1);
  parameter.mutable_grad() = torch::ones({2}, torch::kHalf);
  GradScaler scaler;
  EXPECT_THAT(
      [&] { scaler.unscale_(optimizer); },
      ThrowsMessage<UsageError>(HasSubstr("is fp16")));
  EXPECT_THAT(
      [] { GradScaler({.growth_factor = 1}); },
      ThrowsMessage<UsageError>(HasSubstr("growth_factor 1")));
}

TEST(Accelerator, ComputesInBf16AndReturnsFp32) {
  for (const bool to_fp32 : {true, false}) {
    Accelerator accelerator(
        {.cpu = true,
         .mixed_precision = Precision::kBf16,
         .outputs_to_fp32 = to_fp32});
    torch::nn::Linear model(4, 3);
    auto net = accelerator.prepare(model);
    const auto x = torch::randn({2, 4});
    const auto output = net(x);
    EXPECT_EQ(output.scalar_type(), to_fp32 ? torch::kFloat : torch::kBFloat16);
    const auto rounded = torch::linear(
        x.to(torch::kBFloat16),
        model->weight.to(torch::kBFloat16),
        model->bias.to(torch::kBFloat16));
    EXPECT_TRUE(torch::equal(output.to(torch::kBFloat16), rounded));
    accelerator.backward(output.sum());
    EXPECT_EQ(model->weight.grad().scalar_type(), torch::kFloat);
    EXPECT_EQ(model->forward(x).scalar_type(), torch::kFloat)
        << "outside of the prepared model nothing is cast";
    const auto guard = accelerator.autocast();
    EXPECT_EQ(model->forward(x).scalar_type(), torch::kBFloat16);
    const auto off = accelerator.autocast(false);
    EXPECT_EQ(model->forward(x).scalar_type(), torch::kFloat);
  }
}

TEST(Accelerator, RefusesFp16OnTheCpu) {
  EXPECT_THAT(
      [] { Accelerator({.cpu = true, .mixed_precision = Precision::kFp16}); },
      ThrowsMessage<ConfigError>(HasSubstr("Use bf16")));
}

TEST(Accelerator, TakesPrecisionAndAccumulationFromTheEnvironment) {
  setenv("ACCELERATE_MIXED_PRECISION", "bf16", 1);
  EXPECT_EQ(Accelerator().mixed_precision(), Precision::kBf16);
  EXPECT_EQ(
      Accelerator({.mixed_precision = Precision::kNo}).mixed_precision(),
      Precision::kNo)
      << "what the program says wins";
  setenv("ACCELERATE_MIXED_PRECISION", "fp8", 1);
  EXPECT_THAT(
      [] { Accelerator(); }, ThrowsMessage<ConfigError>(HasSubstr("fp8")));
  unsetenv("ACCELERATE_MIXED_PRECISION");
  setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2", 1);
  {
    Accelerator accelerator;
    const auto window = accelerator.accumulate();
    EXPECT_FALSE(accelerator.sync_gradients());
  }
  {
    Accelerator accelerator({.accumulation = {.num_steps = 1}});
    const auto window = accelerator.accumulate();
    EXPECT_TRUE(accelerator.sync_gradients()) << "what the program says wins";
  }
  setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "many", 1);
  EXPECT_THAT(
      [] { Accelerator(); },
      ThrowsMessage<ConfigError>(
          HasSubstr("must be a whole number of at least 1, not 'many'")));
  unsetenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  EXPECT_THAT(
      [] { Accelerator({.accumulation = {.num_steps = 0}}); },
      ThrowsMessage<ConfigError>(HasSubstr("at least 1")));
}

/// Loss of the last of some steps of a small network on the GPU.
double train_on_gpu(Precision precision) {
  Accelerator accelerator({.mixed_precision = precision});
  torch::manual_seed(3);
  torch::nn::TransformerEncoder model(torch::nn::TransformerEncoderOptions(
      torch::nn::TransformerEncoderLayerOptions(64, 4)
          .dim_feedforward(128)
          .dropout(0.0),
      2));
  torch::optim::AdamW adam(model->parameters(), 1e-3);
  auto [net, optimizer] = accelerator.prepare(model, adam);
  const auto x = torch::randn({16, 32, 64}).to(accelerator.device());
  const auto y = x.roll(1, 0).tanh();
  double last = 0;
  for (int step = 0; step < 150; ++step) {
    const auto loss = torch::mse_loss(net(x), y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item<double>();
  }
  return last;
}

TEST(MixedPrecisionOnAGpu, LossesOfBf16AndFp16FollowThoseOfFp32) {
  if (Accelerator().device().is_cpu()) {
    GTEST_SKIP() << "needs a GPU";
  }
  const double full = train_on_gpu(Precision::kNo);
  const double bf16 = train_on_gpu(Precision::kBf16);
  const double fp16 = train_on_gpu(Precision::kFp16);
  std::cout << "loss after 150 steps: fp32 " << full << ", bf16 " << bf16
            << ", fp16 " << fp16 << '\n';
  // bf16 has 8 bits: single steps differ by half a percent, the curve less.
  EXPECT_NEAR(bf16, full, 0.05 * full);
  EXPECT_NEAR(fp16, full, 0.05 * full);
}

} // namespace
} // namespace accelerate
