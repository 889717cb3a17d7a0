// SPDX-License-Identifier: Apache-2.0
// N ranks on parts of a batch normalise as one rank on the whole batch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <numeric>
#include <sstream>

#include "parallel/reference.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

template <class Norm>
struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(const torch::nn::BatchNormOptions& options)
      : norm(register_module("norm", Norm(options))) {}
  Tensor forward(const Tensor& x) { return norm(x); }
  Norm norm;
};

/// The results of a norm after two steps on rows [first, first + count).
struct Outcome {
  Tensor output, input_grad, weight_grad, bias_grad;
  Tensor running_mean, running_var;
};

/// Each output is weighted, so that gradients differ everywhere.
template <class Call, class Norm>
Outcome two_steps(
    Call&& call,
    Norm& norm,
    const Tensor& all,
    int64_t first,
    int64_t n) {
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    auto x = (all * (step + 1)).narrow(0, first, n).clone();
    x.requires_grad_(true);
    const auto factor = torch::cos(all * 3).narrow(0, first, n);
    if (norm->weight.defined()) {
      norm->weight.mutable_grad() = norm->bias.mutable_grad() = Tensor();
    }
    outcome.output = call(x, factor);
    outcome.input_grad = x.grad();
  }
  if (norm->weight.defined()) {
    outcome.weight_grad = norm->weight.grad().clone();
    outcome.bias_grad = norm->bias.grad().clone();
  }
  outcome.running_mean = norm->running_mean;
  outcome.running_var = norm->running_var;
  return outcome;
}

void expect_near(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.defined(), want.defined());
  if (want.defined() && want.numel() > 0) {
    EXPECT_EQ(got.scalar_type(), want.scalar_type());
    EXPECT_LT(
        (got - want).abs().max().item<double>(),
        tolerance * std::max(1.0, want.abs().max().item<double>()));
  }
}

template <class SyncNorm, class PlainNorm>
void compare(
    const Tensor& all,
    const std::vector<int64_t>& rows,
    const torch::nn::BatchNormOptions& options,
    double tolerance) {
  const auto parameter_type =
      all.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  PlainNorm plain(options);
  plain->to(parameter_type);
  const auto backward = [](const Tensor& y, const Tensor& factor) {
    (y * factor).sum().backward();
    return y.detach();
  };
  const auto whole = two_steps(
      [&](const Tensor& x, const Tensor& factor) {
        return backward(plain(x), factor);
      },
      plain,
      all,
      0,
      all.size(0));
  run_ranks(static_cast<int>(rows.size()), [&](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    auto module = std::make_shared<AroundImpl<SyncNorm>>(options);
    module->to(parameter_type);
    auto net = accelerator.prepare(module);
    const auto rank = static_cast<size_t>(group.rank());
    const int64_t first =
        std::accumulate(rows.begin(), rows.begin() + group.rank(), int64_t{0});
    const auto own = two_steps(
        [&](const Tensor& x, const Tensor& factor) {
          return backward(net(x), factor);
        },
        module->norm,
        all,
        first,
        rows[rank]);
    expect_near(
        own.output, whole.output.narrow(0, first, rows[rank]), tolerance);
    expect_near(
        own.input_grad,
        whole.input_grad.narrow(0, first, rows[rank]),
        tolerance);
    if (own.weight_grad.defined()) {
      // DDP has averaged the gradients of each rank's rows.
      expect_near(
          own.weight_grad * group.world_size(), whole.weight_grad, tolerance);
      expect_near(
          own.bias_grad * group.world_size(), whole.bias_grad, tolerance);
    }
    expect_near(own.running_mean, whole.running_mean, tolerance);
    expect_near(own.running_var, whole.running_var, tolerance);
    if (own.running_mean.defined()) {
      EXPECT_TRUE(same_on_all(group, own.running_mean));
      EXPECT_TRUE(same_on_all(group, own.running_var));
    }
    module->eval();
    plain->eval();
    if (own.running_mean.defined()) {
      expect_near(net(all), plain(all), tolerance);
    }
  });
}

Tensor batch_of(torch::IntArrayRef shape, torch::Dtype dtype) {
  auto generator = at::detail::createCPUGenerator(5);
  // Far from zero, where sums of squares would lose digits.
  return (torch::randn(shape, generator) * 2 + 30).to(dtype);
}

const std::vector<std::vector<int64_t>> kSplits =
    {{8}, {4, 4}, {5, 3}, {0, 8}, {2, 2, 2, 2}, {3, 1, 0, 4}};

// Double: rounding of sums. Float: of x - mean, where x is 30 and 1 ulp 2e-6.
TEST(SyncBatchNorm, NormalisesOverTheBatchesOfAllRanks) {
  for (const auto& rows : kSplits) {
    compare<SyncBatchNorm1d, torch::nn::BatchNorm1d>(
        batch_of({8, 3}, torch::kDouble), rows, {3}, 1e-10);
    compare<SyncBatchNorm1d, torch::nn::BatchNorm1d>(
        batch_of({8, 3, 5}, torch::kFloat), rows, {3}, 5e-5);
    compare<SyncBatchNorm2d, torch::nn::BatchNorm2d>(
        batch_of({8, 3, 4, 2}, torch::kDouble), rows, {3}, 1e-10);
  }
  compare<SyncBatchNorm3d, torch::nn::BatchNorm3d>(
      batch_of({8, 2, 2, 3, 2}, torch::kDouble), {5, 3}, {2}, 1e-10);
}

TEST(SyncBatchNorm, KeepsTheOptionsOfTorch) {
  const auto options = [] { return torch::nn::BatchNormOptions(3); };
  const auto all = batch_of({8, 3, 2, 2}, torch::kDouble);
  for (const auto& each :
       {options().momentum(std::nullopt),
        options().momentum(0.7).eps(0.5),
        options().affine(false),
        options().track_running_stats(false)}) {
    compare<SyncBatchNorm2d, torch::nn::BatchNorm2d>(all, {5, 3}, each, 1e-10);
  }
}

// Statistics are in float; inputs and outputs have 8 bits.
TEST(SyncBatchNorm, Takes16BitInputsWithFloatWeights) {
  compare<SyncBatchNorm2d, torch::nn::BatchNorm2d>(
      batch_of({8, 3, 4, 4}, torch::kFloat).sub(30).to(torch::kBFloat16),
      {5, 3},
      {3},
      1.6e-2);
}

TEST(SyncBatchNorm, EqualsTorchWithoutAGroup) {
  const auto x = batch_of({6, 3, 2, 2}, torch::kFloat);
  SyncBatchNorm2d sync(3);
  torch::nn::BatchNorm2d plain(3);
  EXPECT_TRUE(sync(x).equal(plain(x)));
  EXPECT_TRUE(sync->running_var.equal(plain->running_var));
  EXPECT_EQ(sync->named_buffers().keys(), plain->named_buffers().keys());
  std::ostringstream text;
  text << sync;
  EXPECT_THAT(text.str(), HasSubstr("accelerate::SyncBatchNorm2d(3"));
  EXPECT_THAT(
      [&] {
        sync(torch::ones({2, 3}));
      },
      ThrowsMessage<UsageError>(
          HasSubstr("shape [2, 3]. It must have 4 dimensions")));
}

} // namespace
} // namespace accelerate::testing
