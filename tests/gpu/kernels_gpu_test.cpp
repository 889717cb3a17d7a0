// SPDX-License-Identifier: Apache-2.0
// Kernels compared with a plain expression in double precision.
#include <accelerate/optimizers.h>
#include <accelerate/training/kernels.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/embedding_cases.h"
#include "kernels/gated_cases.h"
#include "kernels/linear_cases.h"
#include "kernels/total_norm_cases.h"

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

TEST_P(KernelsOnGpu, ComputeCrossEntropyOnceMoreOnAKeptGraph) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(3);
  const auto logits =
      torch::randn({6, 64}, torch::kCUDA).to(GetParam()).requires_grad_(true);
  const auto labels = torch::randint(
      64, {6}, torch::TensorOptions(torch::kCUDA).dtype(torch::kLong));
  const auto loss = kernels::cross_entropy(logits, labels, 64);
  (loss * 4).backward({}, /*keep_graph=*/true);
  const auto first = logits.grad().clone();
  logits.mutable_grad().reset();
  loss.backward();
  EXPECT_TRUE(torch::allclose(
      logits.grad().to(torch::kFloat) * 4,
      first.to(torch::kFloat),
      /*rtol=*/1e-2,
      /*atol=*/1e-6));
}

TEST(AdamOnGpu, StepsAsInDoublePrecision) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(11);
  // More than one launch takes, of sizes that are not multiples of a pack, some
  // after an odd number of elements, one larger than a block's part, one empty.
  std::vector<Tensor> parameters;
  std::vector<Tensor> exact;
  std::vector<Tensor> weights;
  ReducedCopies copies;
  const auto memory = torch::randn({200000}, torch::kCUDA);
  int64_t place = 0;
  for (int i = 0; i < 70; ++i) {
    const int64_t size = i == 5 ? 0 : i == 9 ? 70001 : 1 + 37 * i;
    const auto value = memory.narrow(0, place, size);
    place += size + i % 3;
    parameters.push_back(value.detach().requires_grad_(true));
    exact.push_back(value.to(torch::kCPU, torch::kDouble).requires_grad_(true));
    weights.push_back(value.to(torch::kBFloat16));
    copies.weights[parameters.back().unsafeGetTensorImpl()] = weights.back();
  }
  for (const double decay : {0.0, 0.1}) {
    // Without and with the factor of clipping.
    const double factor = decay == 0 ? 1 : 0.375;
    copies.gradient_factor =
        decay == 0 ? Tensor() : torch::full({}, factor, torch::kCUDA);
    optim::AdamW ours(parameters, {.lr = 0.01, .weight_decay = decay});
    optim::AdamW plain(exact, {.lr = 0.01, .weight_decay = decay});
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        const auto gradient = torch::randn_like(exact[i]).to(torch::kBFloat16);
        parameters[i].mutable_grad() = gradient.to(torch::kCUDA);
        exact[i].mutable_grad() = gradient.to(torch::kDouble) * factor;
      }
      // A step that overflowed changes nothing and does not count.
      ours.give_scalars(
          {.found_inf = torch::ones({1}, torch::kCUDA), .copies = {&copies}});
      ours.step();
      ours.give_scalars({.copies = {&copies}});
      ours.step();
      plain.step();
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto got = parameters[i].detach().cpu();
      // Float32 rounds each of a step's ten operations.
      EXPECT_TRUE(torch::allclose(
          got.to(torch::kDouble), exact[i].detach(), 2e-5, 2e-6))
          << i;
      EXPECT_TRUE(torch::equal(weights[i].cpu(), got.to(torch::kBFloat16)))
          << i;
    }
  }
}

TEST(TotalNormOnGpu, IsThatOfOneVector) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  testing::expect_total_norms(torch::kCUDA);
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
    testing::expect_norm_twice(shape, GetParam(), torch::kCUDA, unit);
  }
  testing::expect_dropout({200, 104}, GetParam(), torch::kCUDA);
  testing::expect_dropout({200, 101}, GetParam(), torch::kCUDA);
}

TEST_P(KernelsOnGpu, SumTheGradientsOfARow) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(9);
  // Sums of some hundred numbers, rounded once.
  const double unit = GetParam() == torch::kFloat  ? 5e-5
                      : GetParam() == torch::kHalf ? 2e-2
                                                   : 5e-2;
  // Rows that more ask for than a block has threads, more packs than threads,
  // few ids, and a table and channels that no kernel takes.
  struct Case {
    int64_t num_rows, num_channels;
    std::vector<int64_t> shape;
  };
  for (const auto& [num_rows, num_channels, shape] : std::vector<Case>{
           {30522, 768, {32, 128}},
           {300, 8, {5000}},
           {257, 2304, {2, 100}},
           {1000, 136, {1}},
           {3, 768, {40, 10}},
           {300, 13, {400}}}) {
    for (const auto id_type : {torch::kLong, torch::kInt}) {
      testing::expect_embedding(
          num_rows,
          num_channels,
          shape,
          GetParam(),
          id_type,
          torch::kCUDA,
          unit);
    }
  }
}

TEST_P(KernelsOnGpu, ComputeWhatGatedModelsHave) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(13);
  const double unit = GetParam() == torch::kFloat  ? 1e-4
                      : GetParam() == torch::kHalf ? 1e-2
                                                   : 6e-2;
  // One pack, several warps, more rows than blocks, rows that no kernel takes.
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {2, 5, 8}, {3, 264}, {1100, 64}, {5, 4096}, {3, 13}, {2, 16384}}) {
    testing::expect_rms_norm(shape, GetParam(), torch::kCUDA, unit);
    testing::expect_swiglu(shape, GetParam(), torch::kCUDA, unit);
  }
  for (const int64_t tables : {1, 3}) {
    testing::expect_rotation(
        {3, 7, 5, 64}, tables, GetParam(), torch::kCUDA, unit);
    testing::expect_rotation(
        {3, 7, 5, 6}, tables, GetParam(), torch::kCUDA, unit);
  }
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
