// SPDX-License-Identifier: Apache-2.0
// Raw collectives against closed forms, with ranks as threads.
#include "accelerate/process_group.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/c10d.h"
#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;
using namespace std::chrono_literals;

class ProcessGroupOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(
    Sizes,
    ProcessGroupOf,
    ::testing::Values(1, 2, 4),
    [](const auto& info) { return "Ranks" + std::to_string(info.param); });

TEST_P(ProcessGroupOf, ReducesToClosedForms) {
  const int n = GetParam();
  run_ranks(n, [n](ProcessGroup group) {
    const auto reduced = [&](ReduceOp op) {
      auto value = torch::full({3}, group.rank() + 1.0);
      group.all_reduce(value, op);
      return value[2].item<double>();
    };
    EXPECT_EQ(reduced(ReduceOp::kSum), n * (n + 1) / 2.0);
    EXPECT_EQ(reduced(ReduceOp::kMean), (n + 1) / 2.0);
    EXPECT_EQ(reduced(ReduceOp::kMax), n);
    EXPECT_EQ(reduced(ReduceOp::kMin), 1);
    auto whole = torch::full({1}, 2 * group.rank() + 1, torch::kLong);
    group.all_reduce(whole, ReduceOp::kMean);
    EXPECT_EQ(whole.item<int64_t>(), n);
  });
}

TEST_P(ProcessGroupOf, MovesTensorsToAndFromARoot) {
  const int n = GetParam();
  run_ranks(n, [n](ProcessGroup group) {
    const int root = n - 1;
    auto value = torch::full({2, 2}, group.rank());
    group.broadcast(value, root);
    EXPECT_TRUE(value.equal(torch::full({2, 2}, root)));

    const auto own = torch::full({2}, group.rank());
    const auto all = group.all_gather(own);
    const auto expected =
        torch::arange(n).unsqueeze(1).expand({n, 2}).to(all.dtype());
    EXPECT_TRUE(all.equal(expected));
    const auto gathered = group.gather(own, root);
    EXPECT_EQ(gathered.defined(), group.rank() == root);
    if (gathered.defined()) {
      EXPECT_TRUE(gathered.equal(expected));
    }

    auto part = torch::empty({2}, all.options());
    group.scatter(part, group.rank() == root ? expected : Tensor(), root);
    EXPECT_TRUE(part.equal(own));
  });
}

TEST_P(ProcessGroupOf, WritesThroughViewsThatAreNotContiguous) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    auto matrix = torch::zeros({2, 3});
    auto column = matrix.select(1, 1);
    column.fill_(1);
    group.all_reduce(column, ReduceOp::kSum);
    EXPECT_EQ(matrix[1][1].item<int>(), group.world_size());
    EXPECT_EQ(matrix[1][0].item<int>(), 0);
  });
}

TEST_P(ProcessGroupOf, ExchangesBytesOfAnyLength) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const std::string own(static_cast<size_t>(group.rank()) * 3, 'x');
    const auto all = group.all_gather_bytes(own);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      EXPECT_EQ(all[rank], std::string(rank * 3, 'x'));
    }
    using namespace std::string_literals;
    EXPECT_EQ(
        group.broadcast_bytes(group.rank() == 0 ? "a\0b"s : "", 0), "a\0b"s);
    EXPECT_EQ(group.broadcast_bytes("", 0), "");
    group.barrier();
  });
}

TEST_P(ProcessGroupOf, GivesEachRankItsPartOfTheBytes) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int root = group.world_size() - 1;
    std::vector<std::string> parts;
    for (int rank = 0; group.rank() == root && rank <= root; ++rank) {
      parts.emplace_back(static_cast<size_t>(rank) * 5, 'y');
    }
    const std::string own(static_cast<size_t>(group.rank()) * 5, 'y');
    EXPECT_EQ(group.scatter_bytes(parts, root), own);
    group.barrier();
  });
}

TEST(ProcessGroup, IsARankOfOneByItself) {
  ProcessGroup solo;
  EXPECT_EQ(solo.world_size(), 1);
  EXPECT_EQ(solo.backend(), "solo");
  EXPECT_EQ(to_c10d(solo), nullptr);
  EXPECT_THAT(solo.all_gather_bytes("me"), ElementsAre("me"));
}

TEST(ProcessGroup, WrapsAGroupGivenFromOutside) {
  run_ranks(2, [](ProcessGroup group) {
    const auto wrapped = from_c10d(to_c10d(group));
    EXPECT_EQ(wrapped.rank(), group.rank());
    auto value = torch::ones(1);
    wrapped.all_reduce(value, ReduceOp::kSum);
    EXPECT_EQ(value.item<int>(), 2);
  });
  EXPECT_THROW(from_c10d(nullptr), UsageError);
}

TEST(ProcessGroup, NamesTheOperationWhereARankDoesNotCome) {
  const auto run = [] {
    run_ranks(
        2,
        [](ProcessGroup group) {
          if (group.rank() == 0) {
            group.all_reduce(torch::ones(1), ReduceOp::kSum);
          } else {
            std::this_thread::sleep_for(1500ms);
          }
        },
        {.timeout = 300ms});
  };
  EXPECT_THAT(
      run,
      ThrowsMessage<TimeoutError>(
          AllOf(HasSubstr("[all_reduce]"), HasSubstr("rank 0 of 2"))));
}

TEST(ProcessGroup, EndsTheOthersAtOnceWhereARankThrows) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> comm_errors = 0;
  EXPECT_THAT(
      [&] {
        run_ranks(3, [&](ProcessGroup group) {
          if (group.rank() == 1) {
            throw std::runtime_error("the first");
          }
          try {
            group.barrier();
          } catch (const CommError&) {
            ++comm_errors;
            throw;
          }
        });
      },
      ThrowsMessage<std::runtime_error>("the first"));
  EXPECT_EQ(comm_errors, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST(ProcessGroup, RefusesCollectivesAfterShutdown) {
  run_ranks(2, [](ProcessGroup group) {
    group.barrier();
    group.shutdown();
    EXPECT_THAT(
        [&] { group.barrier(); },
        ThrowsMessage<UsageError>(HasSubstr("shut down")));
  });
}

} // namespace
} // namespace accelerate
