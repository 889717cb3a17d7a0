// SPDX-License-Identifier: Apache-2.0
// Steps whose overflow flag and learning rate stay on the device. Expected
// values come from an optimizer that never makes the steps that overflow, with
// a host learning rate.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>

#include "accelerate/optimizers.h"
#include "training/optim/optimizer_step.h"
#include "training/optim/torch_optimizer.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

Tensor gradient_at(int step, double scale) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  return torch::randn({4, 3}, generator) * scale;
}
bool overflows(int step) {
  return step == 0 || step == 3 || step == 4;
}

using Tensors = std::vector<Tensor>;
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;

class DeviceScalars : public ::testing::TestWithParam<MakeOptimizer> {};
INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    DeviceScalars,
    ::testing::Values(
        [](Tensors p) {
          return std::make_unique<optim::AdamW>(
              p, optim::AdamWOptions{.lr = 0.1, .amsgrad = true});
        },
        [](Tensors p) {
          return std::make_unique<optim::Adam>(
              p, optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1});
        },
        [](Tensors p) {
          return std::make_unique<optim::SGD>(
              p,
              optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
        },
        // With dampening, the host decides.
        [](Tensors p) {
          return std::make_unique<optim::SGD>(
              p,
              optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
        }));

/// Several, because the flag of a step is shared by all.
Tensors two_parameters() {
  return {
      torch::ones({4, 3}).requires_grad_(true),
      torch::ones({3}).requires_grad_(true)};
}
void give_gradients(Tensors& parameters, int step, double scale) {
  parameters[0].mutable_grad() = gradient_at(step, scale);
  parameters[1].mutable_grad() = gradient_at(step, scale)[2].clone();
}

TEST_P(DeviceScalars, StepsThatOverflowChangeNothing) {
  auto trained = two_parameters();
  const auto optimizer = GetParam()(trained);
  const auto scaler = std::make_shared<GradScaler>(
      GradScalerOptions{.init_scale = 8, .growth_interval = 1000});
  OptimizerStep step(
      std::make_unique<TorchOptimizer>(*optimizer),
      std::make_shared<StepState>(),
      scaler);
  auto expected = two_parameters();
  const auto plain = GetParam()(expected);
  for (int i = 0; i < 8; ++i) {
    const double scale = scaler->scale(torch::ones({})).item<double>();
    give_gradients(trained, i, scale);
    if (overflows(i)) {
      trained[0].mutable_grad()[1][2] = std::numeric_limits<float>::infinity();
    } else {
      give_gradients(expected, i, 1);
      plain->step();
    }
    step.step();
    EXPECT_EQ(step.was_skipped(), overflows(i)) << i;
    EXPECT_EQ(step.did_step(), !overflows(i)) << i;
    step.zero_grad();
    scaler->update();
    for (size_t j = 0; j < trained.size(); ++j) {
      EXPECT_TRUE(torch::equal(trained[j], expected[j])) << i << trained[j];
    }
  }
}

TEST_P(DeviceScalars, RatesOfTheDeviceAreThoseOfTheStep) {
  auto trained = torch::ones({4, 3}).requires_grad_(true);
  const auto optimizer = GetParam()({trained});
  OptimizerStep step(
      std::make_unique<TorchOptimizer>(*optimizer),
      std::make_shared<StepState>(),
      nullptr);
  auto expected = torch::ones({4, 3}).requires_grad_(true);
  const auto plain = GetParam()({expected});
  for (int i = 0; i < 4; ++i) {
    // A power of two, which is the same number as float and as double.
    const double rate = std::pow(0.5, i + 1);
    trained.mutable_grad() = gradient_at(i, 1);
    expected.mutable_grad() = gradient_at(i, 1);
    const auto act = [&] {
      step.step({.learning_rates = {torch::full({}, rate)}});
    };
    if (!step.optimizer().takes_scalars()) {
      EXPECT_THAT(
          act,
          ThrowsMessage<UsageError>(HasSubstr("learning rates on the device")));
      return;
    }
    act();
    plain->param_groups()[0].options().set_lr(rate);
    plain->step();
    EXPECT_TRUE(torch::equal(trained, expected)) << i;
  }
  // Only for one step: the next one uses the host's again.
  trained.mutable_grad() = gradient_at(9, 1);
  expected.mutable_grad() = gradient_at(9, 1);
  step.step();
  plain->param_groups()[0].options().set_lr(0.1);
  plain->step();
  EXPECT_TRUE(torch::equal(trained, expected));
}

TEST(DeviceScalarsOf, ARateForEachGroupIsNeeded) {
  auto p = torch::ones({2}).requires_grad_(true);
  optim::AdamW optimizer({p}, {});
  p.mutable_grad() = torch::ones({2});
  optimizer.give_scalars(
      {.learning_rates = {torch::ones({}), torch::ones({})}});
  EXPECT_THAT(
      [&] { optimizer.step(); },
      ThrowsMessage<UsageError>(HasSubstr("for 1 parameter groups")));
}

TEST(Zeroing, FillsOrDropsGradients) {
  auto p = torch::ones({2}).requires_grad_(true);
  torch::optim::SGD sgd({p}, 0.1);
  OptimizerStep step(
      std::make_unique<TorchOptimizer>(sgd),
      std::make_shared<StepState>(),
      nullptr);
  p.mutable_grad() = torch::ones({2});
  const void* memory = p.grad().data_ptr();
  step.zero_grad(Zeroing::kFill);
  EXPECT_EQ(p.grad().data_ptr(), memory);
  EXPECT_TRUE(torch::equal(p.grad(), torch::zeros({2})));
  step.zero_grad(Zeroing::kDrop);
  EXPECT_FALSE(p.grad().defined());
}

TEST(GradientFactor, MultipliesGradientsOfTensorsWithACopyAsAdamReadsThem) {
  const auto weights_of = [](const Tensor& parameter) {
    return parameter.detach().to(torch::kBFloat16);
  };
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    // The third has no copy; the second's has another origin.
    std::vector<Tensor> trained, expected;
    for (const double value : {1.0, 2.0, 3.0}) {
      trained.push_back(torch::full({5}, value).requires_grad_(true));
      expected.push_back(torch::full({5}, value).requires_grad_(true));
    }
    ReducedCopies copies[2];
    for (size_t i = 0; i < 2; ++i) {
      copies[i].weights[trained[i].unsafeGetTensorImpl()] =
          weights_of(trained[i]);
      copies[i].gradient_factor = torch::full({}, i == 0 ? 0.3f : 0.7f);
    }
    const float factors[] = {0.3f, 0.7f, 1.0f};
    optim::AdamW ours(trained, {.lr = 0.1});
    optim::AdamW plain(expected, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < 3; ++i) {
        const auto gradient =
            gradient_at(step, 1).flatten().slice(0, 0, 5).to(type);
        trained[i].mutable_grad() =
            i < 2 ? gradient.clone() : gradient.to(torch::kFloat);
        expected[i].mutable_grad() = gradient.to(torch::kFloat) * factors[i];
      }
      const auto before = trained[0].grad().clone();
      ours.give_scalars({.copies = {&copies[0], &copies[1]}});
      ours.step();
      plain.step();
      EXPECT_TRUE(torch::equal(trained[0].grad(), before));
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::equal(trained[i], expected[i])) << i;
    }
    EXPECT_TRUE(torch::equal(
        copies[1].weights.begin()->second, weights_of(expected[1])));
  }
}

} // namespace
} // namespace accelerate
