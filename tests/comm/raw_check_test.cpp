// SPDX-License-Identifier: Apache-2.0
// Raw collectives that compare operations and values across ranks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/distributed/process_group.h"
#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(CheckCollectives, NamesTheRankThatDiffers) {
  run_ranks(3, [](ProcessGroup group) {
    group.check_collectives();
    const bool is_odd = group.rank() == 2;
    EXPECT_THAT(
        [&] {
          group.all_reduce(torch::ones({is_odd ? 3 : 2}), ReduceOp::kSum);
        },
        ThrowsMessage<MismatchError>(
            AllOf(HasSubstr("rank 2"), HasSubstr("[3]"), HasSubstr("[2]"))));
    EXPECT_THAT(
        [&] {
          group.all_gather(torch::ones(2, is_odd ? torch::kInt : torch::kLong));
        },
        ThrowsMessage<MismatchError>(HasSubstr("rank 2")));
    EXPECT_THAT(
        [&] { is_odd ? group.barrier() : group.broadcast(torch::ones(2), 0); },
        ThrowsMessage<MismatchError>(
            AllOf(HasSubstr("rank 2"), HasSubstr("barrier"))));
    EXPECT_THAT(
        [&] { group.broadcast(torch::ones(2), is_odd ? 1 : 0); },
        ThrowsMessage<MismatchError>(HasSubstr("rank 2")));
  });
}

TEST(CheckCollectives, KeepsTheGroupInStepAndValuesUnchanged) {
  run_ranks(2, [](ProcessGroup group) {
    group.check_collectives();
    const int rank = group.rank();
    EXPECT_THROW(group.all_gather(torch::ones(1 + rank)), MismatchError);
    auto sum = torch::full({2}, rank + 1.0);
    group.all_reduce(sum, ReduceOp::kSum);
    EXPECT_TRUE(sum.equal(torch::full({2}, 3.0)));
    EXPECT_TRUE(
        group.all_gather(torch::tensor(rank)).equal(torch::tensor({0, 1})));
    auto output = torch::zeros(1);
    group.scatter(output, torch::tensor({{5.f}, {6.f}}), 0);
    EXPECT_EQ(output.item<float>(), 5 + rank);
    EXPECT_EQ(group.broadcast_bytes(rank == 0 ? "abc" : "", 0), "abc");
    EXPECT_EQ(group.all_gather_bytes(rank == 0 ? "a" : "bcd")[1], "bcd");
    group.barrier();
  });
}

TEST(CheckCollectives, ComparesNothingOnASingleRank) {
  ProcessGroup alone;
  alone.check_collectives();
  auto sum = torch::ones(2);
  alone.all_reduce(sum, ReduceOp::kSum);
  EXPECT_TRUE(sum.equal(torch::ones(2)));
}

} // namespace
} // namespace accelerate
