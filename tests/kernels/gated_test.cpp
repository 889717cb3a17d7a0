// SPDX-License-Identifier: Apache-2.0
// Compared with the definitions, in double precision.
#include <accelerate/error.h>
#include <gmock/gmock.h>

#include "kernels/gated_cases.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(GatedKernels, AreWhatTheirDefinitionsSay) {
  torch::manual_seed(6);
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    // Angles are of float32.
    const double unit = type == torch::kDouble  ? 1e-6
                        : type == torch::kFloat ? 2e-5
                                                : 5e-2;
    testing::expect_rms_norm({2, 3, 24}, type, torch::kCPU, unit);
    testing::expect_rotation({2, 3, 2, 8}, 2, type, torch::kCPU, unit);
    testing::expect_rotation({2, 3, 2, 8}, 1, type, torch::kCPU, unit);
    testing::expect_swiglu({2, 3, 5}, type, torch::kCPU, unit);
  }
}

TEST(GatedKernels, RefuseWhatDoesNotFit) {
  const auto x = torch::zeros({2, 3, 4, 8});
  EXPECT_THAT(
      [&] { kernels::rms_norm(x, torch::ones({7}), 1e-5); },
      ThrowsMessage<UsageError>(HasSubstr("[rms_norm] Got rows Float")));
  EXPECT_THAT(
      [&] {
        kernels::rotate(x, torch::ones({1, 3, 8}), torch::ones({1, 3, 8}));
      },
      ThrowsMessage<UsageError>(HasSubstr("channels / 2")));
  EXPECT_THAT(
      [&] { kernels::swiglu(x, torch::zeros({2})); },
      ThrowsMessage<UsageError>(
          HasSubstr("the same shape and the same floating-point type")));
}

} // namespace
} // namespace accelerate
