// SPDX-License-Identifier: Apache-2.0
// Compared with torch's own operator, in double precision.
#include <accelerate/error.h>
#include <gmock/gmock.h>

#include "kernels/embedding_cases.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Embedding, IsTorchsInForwardAndBackward) {
  torch::manual_seed(8);
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const double unit = type == torch::kDouble  ? 1e-10
                        : type == torch::kFloat ? 1e-5
                                                : 5e-2;
    testing::expect_embedding(
        20, 8, {3, 5}, type, torch::kLong, torch::kCPU, unit);
    testing::expect_embedding(
        300, 5, {7}, type, torch::kInt, torch::kCPU, unit);
  }
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  const auto table = torch::randn({4, 8});
  const auto ids = torch::zeros({2}, torch::kLong);
  const auto refused = [](auto&& act) {
    EXPECT_THAT(act, ThrowsMessage<UsageError>(HasSubstr("[embedding] Got a")));
  };
  refused([&] { kernels::embedding(table[0], ids); });
  refused([&] { kernels::embedding(table, ids.to(torch::kFloat)); });
  refused([&] { kernels::embedding(table, ids, 4); });
  refused([&] { kernels::embedding(table, ids, -1); });
}

} // namespace
} // namespace accelerate
