// SPDX-License-Identifier: Apache-2.0
// Compared with torch's own operators, in double precision.
#include <accelerate/error.h>
#include <accelerate/training/kernels.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "kernels/add_norm_cases.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

TEST(AddNorm, IsTorchsInForwardAndBackward) {
  torch::manual_seed(5);
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const double unit = type == torch::kDouble  ? 1e-10
                        : type == torch::kFloat ? 1e-5
                                                : 5e-2;
    for (const bool has_bias : {true, false}) {
      testing::expect_add_norm({2, 3, 8}, type, torch::kCPU, has_bias, unit);
    }
    testing::expect_norm_twice({2, 3, 8}, type, torch::kCPU, unit);
  }
}

TEST(Kernels, OfTheCpuAreMadeOfTorchsOperators) {
  EXPECT_FALSE(kernels::has_kernels(torch::kCPU));
}

TEST(AddNorm, DropsWithTheGivenProbability) {
  torch::manual_seed(6);
  testing::expect_dropout({200, 100}, torch::kFloat, torch::kCPU);
}

TEST(AddNorm, NormedTwiceKnowsThatTheOtherWasChanged) {
  const auto x = torch::randn({3, 8}).requires_grad_(true);
  const auto w = torch::ones({8});
  auto [first, second] =
      kernels::add_dropout_layer_norm_twice(x, x, {}, w, w, 0.0, 1e-5);
  const auto squares = first * first;
  second.detach().add_(1);
  EXPECT_THAT(
      [&] { squares.sum().backward(); },
      ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
}

TEST(AddNorm, RefusesWhatDoesNotFit) {
  const auto x = torch::randn({3, 8});
  const auto w = torch::ones({8});
  const auto refused = [](auto&& act, const char* operation) {
    EXPECT_THAT(act, ThrowsMessage<UsageError>(HasSubstr(operation)));
  };
  refused(
      [&] { kernels::layer_norm(x, torch::ones({7}), w, 1e-5); },
      "[layer_norm] ");
  refused(
      [&] { kernels::layer_norm(x, w.to(torch::kHalf), w, 1e-5); },
      "[layer_norm] ");
  refused([&] { kernels::add_dropout(x, x[0], w, 0.1); }, "[add_dropout] ");
  refused([&] { kernels::add_dropout(x, x, w, 1.5); }, "[add_dropout] ");
}

} // namespace
} // namespace accelerate
