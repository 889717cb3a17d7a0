// SPDX-License-Identifier: Apache-2.0
// Raw collectives against closed forms, with ranks as threads.
#include "accelerate/distributed/process_group.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
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
    auto numbers = torch::full({1}, group.rank() + 1, torch::kComplexFloat) *
                   c10::complex<float>(1, -1);
    group.all_reduce(numbers, ReduceOp::kMean);
    const auto mean = static_cast<float>((n + 1) / 2.0);
    EXPECT_EQ(
        numbers.item<c10::complex<float>>(), c10::complex<float>(mean, -mean));
    // As torch sums bools.
    auto flag = torch::full({1}, true, torch::kBool);
    group.all_reduce(flag, ReduceOp::kSum);
    EXPECT_EQ(flag.view(torch::kByte).item<int>(), 1);
  });
}

TEST_P(ProcessGroupOf, KeepsNanInMaximaAndMinima) {
  const int n = GetParam();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  run_ranks(n, [&](ProcessGroup group) {
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
      for (const auto op : {ReduceOp::kMax, ReduceOp::kMin}) {
        for (const int64_t size : {1, 2, 33, 1000}) {
          for (int owner = 0; owner < n; ++owner) {
            auto value = torch::full({size}, -1.5 - group.rank(), dtype);
            value[0] = group.rank() == owner ? kInfinity : -kInfinity;
            if (group.rank() == owner) {
              value[size - 1] = std::nan("");
            }
            auto rows = group.all_gather(value);
            const auto expected =
                op == ReduceOp::kMax ? rows.amax(0) : rows.amin(0);
            auto part = torch::empty({size}, dtype);
            group.reduce_scatter(part, value.repeat({n}), op);
            group.all_reduce(value, op);
            EXPECT_TRUE(std::isnan(value[size - 1].item<double>()));
            EXPECT_TRUE(
                torch::allclose(value, expected, 0, 0, /*equal_nan=*/true));
            EXPECT_TRUE(
                torch::allclose(part, expected, 0, 0, /*equal_nan=*/true));
          }
        }
      }
    }
  });
}

TEST_P(ProcessGroupOf, AveragesValuesWhoseSumOverflows) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int n = group.world_size();
    // The largest fp16 is 65504.
    const auto big = torch::full({n}, 40000, torch::kHalf);
    auto mean = big.clone();
    group.all_reduce(mean, ReduceOp::kMean);
    EXPECT_TRUE(mean.equal(big));
    auto part = torch::empty({1}, torch::kHalf);
    group.reduce_scatter(part, big, ReduceOp::kMean);
    EXPECT_EQ(part.item<float>(), 40000);
  });
}

TEST(Means, OfReducedPrecisionAreRoundedOnce) {
  run_ranks(3, [](ProcessGroup group) {
    // 255 + 3 + 3 is 261, which is 260 in bf16: a third of that would be 86.5.
    const auto whole =
        torch::full({3}, group.rank() == 0 ? 255 : 3, torch::kBFloat16);
    auto mean = whole.clone();
    group.all_reduce(mean, ReduceOp::kMean);
    EXPECT_EQ(mean[0].item<float>(), 87);
    auto part = torch::empty({1}, torch::kBFloat16);
    group.reduce_scatter(part, whole, ReduceOp::kMean);
    EXPECT_EQ(part.item<float>(), 87);
  });
}

struct Refused {
  at::ScalarType dtype;
  ReduceOp op;
  const char* text;
};
const Refused kRefused[] = {
    {torch::kByte, ReduceOp::kMean, "mean of Byte"},
    {torch::kInt, ReduceOp::kMean, "mean of Int"},
    {torch::kBool, ReduceOp::kMean, "mean of Bool"},
    {torch::kShort, ReduceOp::kSum, "sum of Short"},
    {torch::kUInt16, ReduceOp::kMin, "min of UInt16"},
    {torch::kFloat8_e4m3fn, ReduceOp::kSum, "sum of Float8_e4m3fn"},
    {torch::kComplexFloat, ReduceOp::kMax, "max of ComplexFloat"},
};

TEST_P(ProcessGroupOf, RejectsReductionsThatADtypeDoesNotSupport) {
  const auto refuse = [](const ProcessGroup& group) {
    for (const auto& [dtype, op, text] : kRefused) {
      const auto one_line = AllOf(HasSubstr(text), Not(HasSubstr("\n")));
      const auto whole = torch::empty({group.world_size()}, dtype);
      EXPECT_THAT(
          [&] { group.all_reduce(whole, op); },
          ThrowsMessage<UsageError>(one_line));
      EXPECT_THAT(
          [&] { group.reduce_scatter(torch::empty({1}, dtype), whole, op); },
          ThrowsMessage<UsageError>(one_line));
    }
  };
  run_ranks(GetParam(), [&](ProcessGroup group) {
    refuse(group);
    // Nothing was sent.
    group.barrier();
  });
  refuse(ProcessGroup());
}

TEST_P(ProcessGroupOf, MovesTensorsOfAnyDtype) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int n = group.world_size();
    const int root = n - 1;
    for (const auto dtype :
         {torch::kShort,
          torch::kUInt16,
          torch::kUInt64,
          torch::kFloat8_e4m3fn,
          torch::kComplexDouble,
          torch::kBool}) {
      const auto numbers = torch::arange(1, n + 1).to(torch::kDouble);
      const auto all = numbers.to(dtype);
      const auto own = all[group.rank()];
      const auto expect_equal = [](const Tensor& left, const Tensor& right) {
        EXPECT_EQ(left.scalar_type(), right.scalar_type());
        EXPECT_TRUE(left.to(torch::kComplexDouble)
                        .equal(right.to(torch::kComplexDouble)));
      };
      expect_equal(group.all_gather(own), all);
      if (const auto rows = group.gather_to(own, root); rows.defined()) {
        expect_equal(rows, all);
      }
      auto value = own.clone();
      group.broadcast(value, root);
      expect_equal(value, all[root]);
      auto part = torch::empty({}, all.options());
      group.scatter(part, group.rank() == root ? all : Tensor(), root);
      expect_equal(part, own);
    }
  });
}

TEST_P(ProcessGroupOf, SendsTheValuesOfConjugates) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const auto own =
        torch::full({2}, c10::complex<double>(group.rank(), 1)).conj();
    const auto all = group.all_gather(own);
    EXPECT_EQ(
        all[group.world_size() - 1][0].item<c10::complex<double>>(),
        c10::complex<double>(group.world_size() - 1, -1));
    auto sum = own;
    group.all_reduce(sum, ReduceOp::kSum);
    EXPECT_EQ(sum[0].item<c10::complex<double>>().imag(), -group.world_size());
  });
}

TEST_P(ProcessGroupOf, RejectsTensorsThatAreNotDense) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    for (const auto& tensor : {Tensor(), torch::eye(2).to_sparse()}) {
      const auto refusal = ThrowsMessage<UsageError>(
          AllOf(HasSubstr("The tensor is "), Not(HasSubstr("\n"))));
      EXPECT_THAT([&] { group.all_gather(tensor); }, refusal);
      EXPECT_THAT([&] { group.gather_to(tensor, 0); }, refusal);
      EXPECT_THAT([&] { group.broadcast(tensor, 0); }, refusal);
      EXPECT_THAT([&] { group.all_reduce(tensor, ReduceOp::kSum); }, refusal);
    }
    EXPECT_THAT(
        [&] { group.gather_to(torch::ones(1), group.world_size()); },
        ThrowsMessage<UsageError>(HasSubstr("[gather] root is ")));
  });
}

TEST_P(ProcessGroupOf, RejectsAWrongNumberOfRowsInScatter) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int n = group.world_size();
    if (group.rank() == 0) {
      EXPECT_THAT(
          [&] {
            group.scatter(torch::zeros(2), torch::ones({n + 1, 2}), 0);
          },
          ThrowsMessage<UsageError>(HasSubstr("(one per rank)")));
    }
    // Nothing was sent.
    group.barrier();
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
    const auto gathered = group.gather_to(own, root);
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

// Sizes that are not a multiple of a kernel's block, and zero.
const int64_t kPartSizes[] = {0, 1, 3, 129};

TEST_P(ProcessGroupOf, GathersIntoOneTensor) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int n = group.world_size();
    for (const int64_t size : kPartSizes) {
      for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kLong}) {
        const auto part = torch::full({size}, group.rank() + 1, dtype);
        auto whole = torch::zeros({n, size}, dtype);
        group.all_gather_into(whole, part);
        EXPECT_TRUE(whole.equal(
            torch::arange(1, n + 1, dtype).unsqueeze(1).expand({n, size})));
      }
    }
    // Into a view that is not contiguous, from this rank's piece of it.
    auto matrix = torch::zeros({2, n});
    auto column = matrix.select(0, 1);
    column[group.rank()] = group.rank() + 5;
    group.all_gather_into(column, column.slice(0, group.rank()).slice(0, 0, 1));
    EXPECT_TRUE(column.equal(torch::arange(5, n + 5, torch::kFloat)));
    EXPECT_EQ(matrix.select(0, 0).abs().sum().item<int>(), 0);
  });
}

TEST_P(ProcessGroupOf, ScattersReductionsToClosedForms) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int n = group.world_size();
    for (const int64_t size : kPartSizes) {
      for (const auto dtype :
           {torch::kFloat,
            torch::kBFloat16,
            torch::kLong,
            torch::kComplexFloat}) {
        const auto reduced = [&](ReduceOp op) {
          // Element i is i on rank 0, and larger by one on each further rank.
          const auto whole =
              torch::arange(n * size).remainder(7).to(dtype) + group.rank();
          auto part = torch::full({size}, -1, dtype);
          group.reduce_scatter(part, whole, op);
          return at::real(part).to(torch::kDouble);
        };
        const auto base = torch::arange(n * size)
                              .remainder(7)
                              .slice(0, group.rank() * size)
                              .slice(0, 0, size)
                              .to(torch::kDouble);
        const double others = n * (n - 1) / 2.0;
        EXPECT_TRUE(reduced(ReduceOp::kSum).equal(base * n + others));
        if (dtype != torch::kLong) {
          EXPECT_TRUE(reduced(ReduceOp::kMean).equal((base * n + others) / n));
        }
        if (dtype != torch::kComplexFloat) {
          EXPECT_TRUE(reduced(ReduceOp::kMax).equal(base + (n - 1)));
          EXPECT_TRUE(reduced(ReduceOp::kMin).equal(base));
        }
      }
    }
  });
}

TEST(ReduceScatter, IsBitIdenticalToAllReduceOnTwoRanks) {
  run_ranks(2, [](ProcessGroup group) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      auto generator = torch::make_generator<torch::CPUGeneratorImpl>(
          static_cast<uint64_t>(group.rank()));
      const auto whole = torch::randn({2, 1001}, generator).to(dtype);
      auto sum = whole.clone();
      group.all_reduce(sum, ReduceOp::kSum);
      auto part = torch::empty({1001}, dtype);
      group.reduce_scatter(part, whole, ReduceOp::kSum);
      EXPECT_TRUE(part.equal(sum[group.rank()]));
    }
  });
}

TEST(ReduceScatter, RoundsSumsOfReducedPrecisionOnce) {
  run_ranks(4, [](ProcessGroup group) {
    // 256 + 1 + 1 + 1 is 259: 260 in bf16, whose closest values are 258 and
    // 260; added one by one in bf16 it would stay 256.
    const auto whole =
        torch::full({4}, group.rank() == 0 ? 256 : 1, torch::kBFloat16);
    auto part = torch::empty({1}, torch::kBFloat16);
    group.reduce_scatter(part, whole, ReduceOp::kSum);
    EXPECT_EQ(part.item<float>(), 260);
  });
}

TEST(ReduceScatter, RejectsAWholeOfTheWrongSize) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] {
          group.reduce_scatter(
              torch::empty({2}), torch::empty({5}), ReduceOp::kSum);
        },
        ThrowsMessage<UsageError>(
            AllOf(HasSubstr("[reduce_scatter]"), HasSubstr("5 elements"))));
    EXPECT_THAT(
        [&] { group.all_gather_into(torch::empty({3}), torch::empty({2})); },
        ThrowsMessage<UsageError>(HasSubstr("[all_gather_into]")));
  });
}

TEST_P(ProcessGroupOf, RunsConcurrentOperations) {
  run_ranks(GetParam(), [](ProcessGroup group) {
    const int n = group.world_size();
    auto sum = torch::full({3}, group.rank() + 1.0);
    auto value = torch::full({2}, group.rank());
    auto whole = torch::empty({n});
    auto part = torch::empty({1});
    std::vector<ProcessGroup::Work> under_way;
    under_way.push_back(group.start_all_reduce(sum, ReduceOp::kMean));
    under_way.push_back(group.start_broadcast(value, n - 1));
    // Only the handles refer to the arguments of these two.
    under_way.push_back(group.start_all_gather_into(
        whole, torch::full({1}, group.rank() + 0.5)));
    under_way.push_back(
        group.start_reduce_scatter(part, torch::ones({n}), ReduceOp::kSum));
    for (auto work = under_way.rbegin(); work != under_way.rend(); ++work) {
      work->wait();
      work->wait();
    }
    EXPECT_TRUE(sum.equal(torch::full({3}, (n + 1) / 2.0)));
    EXPECT_TRUE(value.equal(torch::full({2}, n - 1)));
    EXPECT_TRUE(whole.equal(torch::arange(n) + 0.5F));
    EXPECT_EQ(part.item<int>(), n);
  });
}

TEST(Work, CompletesWhenItsHandleIsDestroyed) {
  run_ranks(2, [](ProcessGroup group) {
    auto first = torch::ones({3});
    auto second = torch::ones({3});
    {
      auto work = group.start_all_reduce(first, ReduceOp::kSum);
      work = group.start_all_reduce(second, ReduceOp::kSum);
    }
    EXPECT_TRUE(first.equal(torch::full({3}, 2.0F)));
    EXPECT_TRUE(second.equal(torch::full({3}, 2.0F)));
  });
}

TEST(Work, NamesItsOperationIfARankIsMissing) {
  const auto run = [] {
    run_ranks(
        2,
        [](ProcessGroup group) {
          group.barrier();
          if (group.rank() == 0) {
            auto part = torch::empty({1});
            auto work = group.start_reduce_scatter(
                part, torch::ones(2), ReduceOp::kSum);
            group.open_channel();
            work.wait();
          } else {
            std::this_thread::sleep_for(1500ms);
          }
        },
        {.timeout = 300ms});
  };
  EXPECT_THAT(
      run,
      ThrowsMessage<TimeoutError>(AllOf(
          HasSubstr("[reduce_scatter] collective 3"), HasSubstr("on rank 0"))));
}

TEST(ProcessGroup, IsRank0Of1ByDefault) {
  ProcessGroup solo;
  EXPECT_EQ(solo.world_size(), 1);
  EXPECT_TRUE(solo.is_solo());
  EXPECT_EQ(solo.backend(), "solo");
  EXPECT_EQ(to_c10d(solo), nullptr);
  EXPECT_THAT(solo.all_gather_bytes("me"), ElementsAre("me"));
  EXPECT_THAT(
      [&] { solo.start_send(torch::ones(1), 0, 0); },
      ThrowsMessage<UsageError>(
          HasSubstr("[send] The group has only one rank")));
}

TEST(RunRanks, RejectsLessThanOne) {
  for (const int num_ranks : {-1, 0}) {
    EXPECT_THAT(
        [&] { run_ranks(num_ranks, [](ProcessGroup) {}); },
        ThrowsMessage<UsageError>(HasSubstr("expected at least 1")));
  }
}

TEST(ProcessGroup, WrapsAGroupGivenFromOutside) {
  run_ranks(2, [](ProcessGroup group) {
    const auto wrapped = from_c10d(to_c10d(group));
    EXPECT_EQ(wrapped.rank(), group.rank());
    EXPECT_FALSE(wrapped.is_solo());
    auto value = torch::ones(1);
    wrapped.all_reduce(value, ReduceOp::kSum);
    EXPECT_EQ(value.item<int>(), 2);
  });
  EXPECT_THROW(from_c10d(nullptr), UsageError);
}

TEST(ProcessGroup, NamesTheOperationIfARankIsMissing) {
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
          AllOf(HasSubstr("[all_reduce]"), HasSubstr("on rank 0"))));
}

TEST(ProcessGroup, EndsOtherRanksIfOneThrows) {
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

TEST(ProcessGroup, RejectsCollectivesAfterShutdown) {
  run_ranks(2, [](ProcessGroup group) {
    group.barrier();
    EXPECT_FALSE(group.is_shut_down());
    group.shutdown();
    EXPECT_TRUE(group.is_shut_down());
    EXPECT_THAT(
        [&] { group.barrier(); },
        ThrowsMessage<UsageError>(HasSubstr("shut down")));
  });
}

} // namespace
} // namespace accelerate
