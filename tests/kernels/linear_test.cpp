// SPDX-License-Identifier: Apache-2.0
// Compared with torch's own operators, in double precision.
#include <accelerate/error.h>
#include <gmock/gmock.h>

#include "kernels/linear_cases.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(LinearKernels, AreTorchsInForwardAndBackward) {
  torch::manual_seed(8);
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const double unit = type == torch::kDouble  ? 1e-10
                        : type == torch::kFloat ? 1e-5
                                                : 3e-2;
    for (const bool is_transposed : {true, false}) {
      for (const auto gelu : {kernels::Gelu::kErf, kernels::Gelu::kTanh}) {
        testing::expect_linear(
            {{2, 3}, 8, 16, 5}, type, torch::kCPU, is_transposed, gelu, unit);
      }
    }
  }
}

TEST(LinearKernels, GiveNoGradientToWhatIsFrozen) {
  const auto x = torch::randn({3, 4});
  const auto w = torch::randn({5, 4});
  const auto b = torch::randn({5}).requires_grad_(true);
  const auto down = torch::randn({2, 5});
  kernels::linear(x, w, b).sum().backward();
  EXPECT_TRUE(torch::equal(b.grad(), torch::full({5}, 3.0)));
  kernels::linear_gelu_linear(x, w, b, down, kernels::Gelu::kErf)
      .sum()
      .backward();
  for (const auto& frozen : {x, w, down}) {
    EXPECT_FALSE(frozen.grad().defined());
  }
}

TEST(LinearKernels, RefuseWhatDoesNotFit) {
  const auto x = torch::randn({3, 4});
  const auto w = torch::randn({5, 4});
  const auto b = torch::randn({5});
  const auto refused = [](auto&& act) {
    EXPECT_THAT(act, ThrowsMessage<UsageError>(HasSubstr("[linear")));
  };
  refused([&] { kernels::linear(x, w.t(), b); });
  refused([&] { kernels::linear(x, w, b.to(torch::kHalf)); });
  refused([&] { kernels::linear(x, w, b[0]); });
  refused(
      [&] { kernels::linear_gelu_linear(x, w, b, w, kernels::Gelu::kErf); });
}

} // namespace
} // namespace accelerate
