// SPDX-License-Identifier: Apache-2.0
// Compared with torch's norm of one vector, in double precision.
#include "kernels/total_norm_cases.h"

namespace accelerate {
namespace {

TEST(TotalNorm, IsThatOfOneVector) {
  testing::expect_total_norms(torch::kCPU);
}

TEST(TotalNorm, IsOfDoublePrecisionWhereOneTensorIs) {
  const auto norm = testing::total_norm(
      {torch::full({1}, 3.0), torch::full({1}, 4.0, torch::kDouble)}, 2);
  EXPECT_EQ(norm.scalar_type(), torch::kDouble);
  EXPECT_EQ(norm.item<double>(), 5);
}

} // namespace
} // namespace accelerate
