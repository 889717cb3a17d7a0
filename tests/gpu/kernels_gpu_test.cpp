// SPDX-License-Identifier: Apache-2.0
// Kernels beside a plain expression in double precision.
#include <accelerate/kernels.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/linear_cases.h"

namespace accelerate {
namespace {

using torch::Tensor;

class KernelsOnGpu : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(
    Types,
    KernelsOnGpu,
    ::testing::Values(torch::kFloat, torch::kHalf, torch::kBFloat16));

TEST_P(KernelsOnGpu, ComputeCrossEntropy) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(2);
  struct Case {
    int64_t num_rows, num_columns, num_classes;
  };
  // One pack of 16 bytes, less than one, several for each thread, rows that
  // are not aligned.
  for (const auto& [rows, columns, classes] :
       {Case{5, 8, 8},
        Case{3, 8, 1},
        Case{7, 64, 59},
        Case{9, 50304, 50257},
        Case{4, 5003, 5001}}) {
    auto values =
        (torch::randn({rows, columns}, torch::kCUDA) * 3).to(GetParam());
    values.slice(1, classes).fill_(100);
    auto labels = torch::randint(
        classes,
        {rows},
        torch::TensorOptions(torch::kCUDA).dtype(torch::kLong));
    labels[1] = -100;
    const auto logits = values.detach().clone().requires_grad_(true);
    const auto loss = kernels::cross_entropy(logits, labels, classes);
    (loss * 2).backward();
    const auto exact = values.detach().to(torch::kDouble).requires_grad_(true);
    const auto want = at::cross_entropy_loss(
        exact.narrow(1, 0, classes), labels, {}, at::Reduction::Mean, -100);
    (want * 2).backward();
    ASSERT_EQ(loss.scalar_type(), torch::kFloat);
    EXPECT_NEAR(loss.item<double>(), want.item<double>(), 2e-5) << columns;
    ASSERT_EQ(logits.grad().scalar_type(), GetParam());
    const double unit = GetParam() == torch::kFloat  ? 2e-6
                        : GetParam() == torch::kHalf ? 1e-3
                                                     : 5e-3;
    EXPECT_LE((logits.grad() - exact.grad()).abs().max().item<double>(), unit)
        << columns;
  }
}

TEST_P(KernelsOnGpu, ComputeSumsAndNorms) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(7);
  const double unit = GetParam() == torch::kFloat  ? 5e-5
                      : GetParam() == torch::kHalf ? 2e-2
                                                   : 5e-2;
  // One pack for some lanes, packs of several, an odd number of rows, rows that
  // no kernel takes.
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {2, 5, 8}, {9, 768}, {2, 301, 264}, {7, 1536}, {3, 13}, {2, 4096}}) {
    for (const bool has_bias : {true, false}) {
      testing::expect_add_norm(shape, GetParam(), torch::kCUDA, has_bias, unit);
    }
  }
  testing::expect_dropout({200, 104}, GetParam(), torch::kCUDA);
  testing::expect_dropout({200, 101}, GetParam(), torch::kCUDA);
}

TEST_P(KernelsOnGpu, ComputeProductsWithTheirEnds) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(9);
  const double unit = GetParam() == torch::kFloat  ? 1e-3
                      : GetParam() == torch::kHalf ? 5e-3
                                                   : 3e-2;
  // What the kernels take, odd numbers of rows, and numbers of channels that
  // they do not take.
  for (const auto& c : std::vector<testing::LinearCase>{
           {{2, 128}, 64, 256, 64},
           {{37}, 64, 128, 72},
           {{3, 5}, 8, 16, 8},
           {{1}, 768, 3072, 768},
           {{9}, 12, 20, 4},
           {{4096}, 768, 3072, 768}}) {
    for (const bool is_transposed : {true, false}) {
      for (const auto gelu : {kernels::Gelu::kErf, kernels::Gelu::kTanh}) {
        testing::expect_linear(
            c, GetParam(), torch::kCUDA, is_transposed, gelu, unit);
      }
    }
  }
}

} // namespace
} // namespace accelerate
