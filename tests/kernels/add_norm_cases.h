// SPDX-License-Identifier: Apache-2.0
// Cases for both the CPU and GPUs.
#pragma once

#include <accelerate/training/kernels.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace accelerate::testing {

inline void expect_near(
    const at::Tensor& got,
    const at::Tensor& want,
    double unit,
    const char* what) {
  ASSERT_TRUE(got.defined()) << what;
  // Sums over rows grow with their number.
  const double size = std::max(1.0, want.abs().max().item<double>());
  EXPECT_LE(
      (got.to(at::kDouble) - want).abs().max().item<double>(), unit * size)
      << what << ' ' << got.scalar_type() << got.sizes();
}

/// Without dropout, compared with an expression in double.
inline void expect_add_norm(
    std::vector<int64_t> shape,
    at::ScalarType type,
    c10::DeviceType device,
    bool has_bias,
    double unit) {
  const auto options = torch::TensorOptions(device).dtype(type);
  const int64_t C = shape.back();
  std::vector<at::Tensor> own, exact;
  for (const auto& sizes :
       {shape, shape, {C}, std::vector<int64_t>{C}, std::vector<int64_t>{C}}) {
    own.push_back(torch::randn(sizes, options).requires_grad_(true));
    exact.push_back(own.back().detach().to(at::kDouble).requires_grad_(true));
  }
  const auto sum_gradient = torch::randn(shape, options);
  const auto norm_gradient = torch::randn(shape, options);
  const auto [sum, normed] = kernels::add_dropout_layer_norm(
      own[0],
      own[1],
      has_bias ? own[2] : at::Tensor(),
      own[3],
      own[4],
      0.0,
      1e-5);
  // Also without the normalised values, and alone.
  const auto again =
      kernels::layer_norm(own[0], own[3], own[4], 1e-5) +
      kernels::add_dropout(own[0], own[1], has_bias ? own[2] : at::Tensor(), 0);
  torch::autograd::backward(
      {sum, normed, again}, {sum_gradient, norm_gradient, norm_gradient});
  auto branch = has_bias ? exact[1] + exact[2] : exact[1];
  const auto want_sum = exact[0] + branch;
  const auto want_normed =
      at::layer_norm(want_sum, {C}, exact[3], exact[4], 1e-5);
  const auto want_again =
      at::layer_norm(exact[0], {C}, exact[3], exact[4], 1e-5) + want_sum;
  torch::autograd::backward(
      {want_sum, want_normed, want_again},
      {sum_gradient.to(at::kDouble),
       norm_gradient.to(at::kDouble),
       norm_gradient.to(at::kDouble)});
  EXPECT_EQ(sum.scalar_type(), type);
  EXPECT_EQ(normed.scalar_type(), type);
  expect_near(sum, want_sum, unit, "sum");
  expect_near(normed, want_normed, unit, "normed");
  const char* names[] = {"residual", "branch", "branch bias", "weight", "bias"};
  for (size_t i = 0; i < own.size(); ++i) {
    if (i == 2 && !has_bias) {
      EXPECT_FALSE(own[i].grad().defined());
    } else {
      expect_near(own[i].grad(), exact[i].grad(), unit, names[i]);
    }
  }
}

/// The normalised values twice, used by both consumers and by each of them
/// alone.
inline void expect_norm_twice(
    std::vector<int64_t> shape,
    at::ScalarType type,
    c10::DeviceType device,
    double unit) {
  const auto options = torch::TensorOptions(device).dtype(type);
  const int64_t C = shape.back();
  for (const auto& [reads_first, reads_second] :
       {std::pair(true, true), {true, false}, {false, true}}) {
    std::vector<at::Tensor> own, exact;
    for (const auto& sizes :
         {shape,
          shape,
          {C},
          std::vector<int64_t>{C},
          std::vector<int64_t>{C}}) {
      own.push_back(torch::randn(sizes, options).requires_grad_(true));
      exact.push_back(own.back().detach().to(at::kDouble).requires_grad_(true));
    }
    const auto [first, second] = kernels::add_dropout_layer_norm_twice(
        own[0], own[1], own[2], own[3], own[4], 0.0, 1e-5);
    const auto want = at::layer_norm(
        exact[0] + exact[1] + exact[2], {C}, exact[3], exact[4], 1e-5);
    expect_near(first, want, unit, "first");
    EXPECT_TRUE(torch::equal(first, second));
    std::vector<at::Tensor> readers, gradients;
    for (const auto& [reader, is_read] :
         {std::pair(first, reads_first), {second, reads_second}}) {
      if (is_read) {
        readers.push_back(reader);
        gradients.push_back(torch::randn(shape, options));
      }
    }
    torch::autograd::backward(readers, gradients);
    auto all = gradients[0].to(at::kDouble);
    if (gradients.size() > 1) {
      all = all + gradients[1];
    }
    want.backward(all);
    const char* names[] = {
        "residual", "branch", "branch bias", "weight", "bias"};
    for (size_t i = 0; i < own.size(); ++i) {
      expect_near(own[i].grad(), exact[i].grad(), unit, names[i]);
    }
  }
}

/// Of a branch of ones: what is kept is 1 / (1 - p), and so is its gradient.
inline void expect_dropout(
    std::vector<int64_t> shape,
    at::ScalarType type,
    c10::DeviceType device) {
  const auto options = torch::TensorOptions(device).dtype(type);
  const auto residual = torch::zeros(shape, options).requires_grad_(true);
  const auto branch = torch::ones(shape, options).requires_grad_(true);
  constexpr double kDropout = 0.25;
  const auto first = kernels::add_dropout(residual, branch, {}, kDropout);
  first.sum().backward();
  EXPECT_TRUE(torch::equal(branch.grad(), first.detach()));
  EXPECT_TRUE(torch::equal(residual.grad(), torch::ones_like(residual)));
  const auto kept = first.detach().ne(0);
  EXPECT_TRUE(torch::allclose(
      first.detach().masked_select(kept).to(at::kDouble),
      torch::full({}, 1 / (1 - kDropout), first.options().dtype(at::kDouble)),
      1e-2));
  // 20,000 draws: five deviations are 0.016.
  EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.75, 0.016);
  const auto second =
      kernels::add_dropout(residual, branch, {}, kDropout).detach();
  EXPECT_FALSE(torch::equal(first.detach(), second));
}

} // namespace accelerate::testing
