// SPDX-License-Identifier: Apache-2.0
// Checked collectives on trees.
#include "accelerate/distributed/collectives.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <regex>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "training/comm/agreement.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using torch::Tensor;
using Map = std::map<std::string, Tensor>;

TEST(Gather, ConcatenatesTreesInRankOrder) {
  run_ranks(3, [](ProcessGroup group) {
    const int rank = group.rank();
    const Map all = all_gather(
        group,
        Map{{"rows", torch::full({2, 2}, rank)},
            {"scalar", torch::tensor(rank)}});
    EXPECT_TRUE(all.at("scalar").equal(torch::tensor({0, 1, 2})));
    EXPECT_TRUE(
        all.at("rows").select(1, 0).equal(torch::tensor({0, 0, 1, 1, 2, 2})));
  });
}

TEST(Gather, AllowsTheFirstDimensionToDiffer) {
  run_ranks(3, [](ProcessGroup group) {
    const auto own = torch::full({group.rank(), 2}, group.rank());
    const auto expected = torch::tensor({{1, 1}, {2, 2}, {2, 2}});
    EXPECT_TRUE(all_gather(group, own).equal(expected));
    const auto on_root = gather_to(group, own, 1);
    EXPECT_EQ(on_root.has_value(), group.rank() == 1);
    if (on_root) {
      EXPECT_TRUE(on_root->equal(expected));
    }
  });
}

TEST(Gather, HandlesMoreTensorsThanFitTheHeader) {
  run_ranks(2, [](ProcessGroup group) {
    std::vector<Tensor> many;
    for (int i = 0; i < 80; ++i) {
      many.push_back(torch::full({(i + group.rank()) % 3}, i));
    }
    const auto all = all_gather(group, many);
    for (int i = 0; i < 80; ++i) {
      const auto& tensor = all[static_cast<size_t>(i)];
      EXPECT_TRUE(tensor.equal(torch::full({i % 3 + (i + 1) % 3}, i)));
    }
  });
}

TEST(Reduce, DoesNotModifyItsArgument) {
  run_ranks(2, [](ProcessGroup group) {
    const auto own = torch::full({2}, group.rank() + 1.0);
    const auto pair = reduce(group, std::pair(own, own), ReduceOp::kMean);
    EXPECT_TRUE(pair.first.equal(torch::full({2}, 1.5)));
    EXPECT_EQ(own[0].item<double>(), group.rank() + 1.0);
  });
}

TEST(Numbers, AreReducedLikeScalarsAndTheirVectorsLikeTensors) {
  run_ranks(2, [](ProcessGroup group) {
    const int rank = group.rank();
    EXPECT_EQ(reduce(group, 1.0 + rank, ReduceOp::kMean), 1.5);
    EXPECT_EQ(reduce(group, 1.0F + static_cast<float>(rank)), 3.0F);
    EXPECT_EQ(reduce(group, size_t{3} + rank), size_t{7});
    EXPECT_EQ(reduce(group, rank == 1), true);
    const std::map<std::string, double> losses{{"a", rank}, {"b", 4.0}};
    const auto means = reduce(group, losses, ReduceOp::kMean);
    EXPECT_THAT(means, ElementsAre(Pair("a", 0.5), Pair("b", 4.0)));
    EXPECT_THAT(
        reduce(group, std::vector<double>{1.0, 2.0 * rank}),
        ElementsAre(2.0, 2.0));
    EXPECT_THAT(
        reduce(group, std::vector<bool>{rank == 0, false}),
        ElementsAre(true, false));
    const auto both = reduce(group, std::pair(torch::ones(2), 2.5));
    EXPECT_TRUE(both.first.equal(torch::full({2}, 2.0)));
    EXPECT_EQ(both.second, 5.0);
  });
}

TEST(Numbers, AreGatheredToVectors) {
  run_ranks(2, [](ProcessGroup group) {
    const int rank = group.rank();
    EXPECT_THAT(all_gather(group, 0.5 * rank), ElementsAre(0.0, 0.5));
    EXPECT_THAT(
        all_gather(
            group, std::vector<int>(static_cast<size_t>(rank + 1), rank)),
        ElementsAre(0, 1, 1));
    const std::map<std::string, double> losses{{"a", rank}};
    EXPECT_THAT(
        all_gather(group, losses), ElementsAre(Pair("a", ElementsAre(0, 1))));
    const auto [rows, ids] =
        all_gather(group, std::pair(torch::ones({2, 1}), int64_t{rank}));
    EXPECT_EQ(rows.size(0), 4);
    EXPECT_THAT(ids, ElementsAre(0, 1));
    const auto on_root = gather_to(group, std::array<float, 2>{0, 1}, 1);
    EXPECT_EQ(on_root.has_value(), rank == 1);
    auto mine =
        std::tuple(torch::full({1}, rank), rank, std::vector{1.0 * rank});
    broadcast(group, mine, 1);
    EXPECT_EQ(std::get<0>(mine).item<int>(), 1);
    EXPECT_EQ(std::get<1>(mine), 1);
    EXPECT_THAT(std::get<2>(mine), ElementsAre(1.0));
  });
}

TEST(Numbers, UnsupportedReductionsAreNamed) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] { reduce(group, group.rank(), ReduceOp::kMean); },
        ThrowsMessage<UsageError>(HasSubstr("the mean of Long")));
    EXPECT_THAT(
        [&] { reduce(group, std::pair(torch::ones(1), int8_t{100})); },
        ThrowsMessage<UsageError>(
            AllOf(HasSubstr("200"), HasSubstr("8 bits"))));
    constexpr auto kMost = std::numeric_limits<int64_t>::max();
    const auto is_refused =
        ThrowsMessage<UsageError>(HasSubstr("does not fit into int64"));
    EXPECT_THAT([&] { reduce(group, kMost); }, is_refused);
    EXPECT_THAT([&] { reduce(group, -kMost); }, is_refused);
    // More than is sent along with the check.
    EXPECT_THAT(
        [&] { reduce(group, std::vector<int64_t>(5000, kMost)); }, is_refused);
    EXPECT_EQ(reduce(group, kMost / 2), kMost - 1);
    EXPECT_EQ(reduce(group, kMost, ReduceOp::kMax), kMost);
    // Tensors wrap around, as in torch.
    EXPECT_EQ(reduce(group, torch::tensor(kMost)).item<int64_t>(), -2);
  });
}

/// The number of exchanges that `call` makes.
int64_t num_exchanges(
    const ProcessGroup& group,
    const std::function<void()>& call) {
  const auto gloo = to_c10d(group)->getBackend(c10::kCPU);
  const auto before = gloo->getSequenceNumberForGroup();
  call();
  return static_cast<int64_t>(gloo->getSequenceNumberForGroup() - before);
}

TEST(Collectives, ExchangeSmallValuesTogetherWithTheirCheck) {
  run_ranks(2, [](ProcessGroup group) {
    const int rank = group.rank();
    const auto count = [&](auto call) { return num_exchanges(group, call); };
    const Map small{{"loss", torch::tensor(0.5)}, {"hits", torch::ones({9})}};
    EXPECT_EQ(count([&] { reduce(group, small); }), 1);
    EXPECT_EQ(count([&] { all_gather(group, small); }), 1);
    EXPECT_EQ(count([&] { gather_to(group, small, 1); }), 1);
    const auto uneven = torch::ones({1 + rank, 3});
    EXPECT_EQ(count([&] { all_gather(group, uneven); }), 1);
    const auto large = torch::ones({1000});
    EXPECT_EQ(count([&] { reduce(group, large); }), 2);
    EXPECT_EQ(count([&] { all_gather(group, large); }), 2);
    // Values that are small on one rank only are sent like those of the others.
    const auto both = torch::full({rank == 0 ? 1 : 1000}, rank);
    at::Tensor all;
    EXPECT_EQ(count([&] { all = all_gather(group, both); }), 2);
    EXPECT_EQ(all.sum().item<int64_t>(), 1000);
  });
}

TEST(Reduce, GivesTheSameForSmallAndLargeValues) {
  const auto ops = {
      ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin};
  run_ranks(3, [&](ProcessGroup group) {
    const auto numbers = torch::tensor({{0, 1, 2}, {3, -4, 5}, {1, 0, 3}});
    for (const auto dtype :
         {torch::kFloat,
          torch::kDouble,
          torch::kHalf,
          torch::kBFloat16,
          torch::kComplexFloat,
          torch::kBool,
          torch::kByte,
          torch::kInt,
          torch::kLong}) {
      for (const auto op : ops) {
        const bool is_whole = at::isIntegralType(dtype, /*includeBool=*/true);
        if ((is_whole && op == ReduceOp::kMean) ||
            (at::isComplexType(dtype) && op != ReduceOp::kMean)) {
          continue;
        }
        const auto small = numbers[group.rank()].to(dtype);
        const auto large = reduce(group, small.repeat({400}), op);
        const auto found = reduce(group, small, op);
        EXPECT_EQ(found.scalar_type(), dtype);
        EXPECT_TRUE(found.equal(large.slice(0, 0, 3)))
            << dtype << ' ' << found << large.slice(0, 0, 3);
      }
    }
  });
}

TEST(Gather, GathersSmallValuesOfAnyKind) {
  run_ranks(2, [](ProcessGroup group) {
    const auto base = torch::arange(6).reshape({2, 3}) + 10 * group.rank();
    const auto both =
        torch::cat({base - 10 * group.rank(), base + 10 - 10 * group.rank()});
    EXPECT_TRUE(all_gather(group, base).equal(both));
    const auto columns = all_gather(group, base.t()); // not contiguous
    EXPECT_TRUE(columns.equal(torch::cat(
        {base.t() - 10 * group.rank(), base.t() + 10 - 10 * group.rank()})));
    const auto conjugate =
        torch::complex(torch::zeros(1), torch::ones(1)).conj();
    EXPECT_TRUE(
        all_gather(group, conjugate).equal(torch::cat({conjugate, conjugate})));
    EXPECT_EQ(all_gather(group, torch::zeros({0, 2})).size(0), 0);
    EXPECT_FALSE(
        all_gather(group, torch::ones(1).requires_grad_()).requires_grad());
  });
}

TEST(Broadcast, OverwritesInPlace) {
  run_ranks(3, [](ProcessGroup group) {
    auto tree = std::vector{
        torch::full({2}, group.rank()), torch::tensor(group.rank())};
    const Tensor alias = tree[0];
    broadcast(group, tree, 2);
    EXPECT_TRUE(alias.equal(torch::full({2}, 2)));
    EXPECT_EQ(tree[1].item<int>(), 2);
  });
}

TEST(Scatter, GivesEachRankItsPartOfTheRoots) {
  run_ranks(2, [](ProcessGroup group) {
    const bool is_root = group.rank() == 1;
    const auto value =
        is_root ? torch::arange(8).reshape({4, 2}) : torch::zeros(1);
    const auto part = scatter(group, value, 1);
    EXPECT_TRUE(part.equal(
        group.rank() == 0 ? torch::tensor({{0, 1}, {2, 3}})
                          : torch::tensor({{4, 5}, {6, 7}})));
  });
}

TEST(Scatter, RejectsIndivisibleRowsOnAllRanks) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] { scatter(group, torch::zeros(3), 0); },
        ThrowsMessage<MismatchError>(HasSubstr("3 rows")));
  });
}

TEST(PadAcrossProcesses, PadsToTheLongest) {
  run_ranks(2, [](ProcessGroup group) {
    const auto own = torch::full({1, 1 + group.rank()}, 7);
    const auto back =
        pad_across_processes(group, own, {.dim = 1, .pad_index = -1});
    const auto front = pad_across_processes(
        group, own, {.dim = 1, .pad_index = -1, .pad_first = true});
    const bool is_short = group.rank() == 0;
    EXPECT_TRUE(back.equal(
        is_short ? torch::tensor({{7, -1}}) : torch::tensor({{7, 7}})));
    EXPECT_TRUE(front.equal(
        is_short ? torch::tensor({{-1, 7}}) : torch::tensor({{7, 7}})));
    // Without that dimension: unchanged, whatever the other ranks pass.
    const auto other = torch::zeros(2 + group.rank());
    EXPECT_TRUE(pad_across_processes(group, other, {.dim = 3}).is_same(other));
    // One dimension after the other.
    auto ragged = torch::full({2 + group.rank(), 3 - group.rank()}, 7);
    ragged = pad_across_processes(group, ragged, {.dim = 1, .pad_index = -1});
    ragged = pad_across_processes(group, ragged, {.dim = 0, .pad_index = -2});
    EXPECT_TRUE(ragged.equal(
        is_short ? torch::tensor({{7, 7, 7}, {7, 7, 7}, {-2, -2, -2}})
                 : torch::tensor({{7, 7, -1}, {7, 7, -1}, {7, 7, -1}})));
    // Also where this rank has nothing to pad.
    const auto refuse = [&](at::ScalarType dtype, double value) {
      const auto ones = torch::ones({1 + group.rank()}, dtype);
      EXPECT_THAT(
          [&] { pad_across_processes(group, ones, {.pad_index = value}); },
          ThrowsMessage<UsageError>(HasSubstr("pad_index")));
    };
    refuse(torch::kByte, -1);
    refuse(torch::kBool, std::nan(""));
    refuse(torch::kLong, 0.5);
  });
}

TEST(Collectives, RejectUnsupportedValuesOnAllRanks) {
  const auto refuse = [](const ProcessGroup& group) {
    const auto refused = [](const char* text) {
      return ThrowsMessage<UsageError>(
          AllOf(HasSubstr(text), Not(HasSubstr("\n"))));
    };
    EXPECT_THAT(
        [&] { all_gather(group, Tensor()); },
        refused("[gather] The tensor is undefined"));
    EXPECT_THAT(
        [&] { scatter(group, Tensor(), 0); }, refused("passed an undefined"));
    EXPECT_THAT(
        [&] { reduce(group, torch::ones(1, torch::kShort)); },
        refused("[reduce] Cannot compute the sum of Short"));
    EXPECT_THAT(
        [&] { reduce(group, torch::ones(1, torch::kInt), ReduceOp::kMean); },
        refused("Convert to float first"));
  };
  run_ranks(2, [&](ProcessGroup group) {
    refuse(group);
    group.barrier();
  });
  refuse(ProcessGroup());
}

TEST(Scatter, NeedsOnlyTheStructureFromOtherRanks) {
  run_ranks(2, [](ProcessGroup group) {
    const auto value = group.rank() == 0 ? torch::tensor({5.0, 6.0}) : Tensor();
    EXPECT_EQ(scatter(group, value, 0).item<double>(), 5 + group.rank());
  });
}

struct Mismatch {
  const char* name;
  std::function<void(ProcessGroup)> call;
  const char* odd_text;
};

class Mismatched : public ::testing::TestWithParam<Mismatch> {};

TEST_P(Mismatched, IsAnErrorOnAllRanksThatNamesTheOddOne) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_ranks(3, [&](ProcessGroup group) {
    try {
      GetParam().call(group);
    } catch (const MismatchError& error) {
      const std::lock_guard<std::mutex> lock(mutex);
      messages.push_back(error.what());
    }
    // The group is still usable.
    group.barrier();
  });
  ASSERT_EQ(messages.size(), 3U);
  for (const auto& message : messages) {
    EXPECT_THAT(
        message,
        AllOf(HasSubstr(" on rank 1"), HasSubstr(GetParam().odd_text)));
  }
}

const Mismatch kMismatches[] = {
    {"Shape",
     [](ProcessGroup g) {
       all_gather(g, torch::zeros({2, g.rank() == 1 ? 5 : 4}));
     },
     "gather() was called with shape [2, 5] on rank 1"},
    {"NumberOfDimensions",
     [](ProcessGroup g) {
       all_gather(g, g.rank() == 1 ? torch::zeros({2, 2}) : torch::zeros(2));
     },
     "gather() was called with shape [2, 2] on rank 1"},
    {"Dtype",
     [](ProcessGroup g) {
       reduce(g, torch::zeros(2, g.rank() == 1 ? torch::kInt : torch::kFloat));
     },
     "reduce() with sum was called with dtype Int and shape [2] on rank 1"},
    {"Structure",
     [](ProcessGroup g) {
       all_gather(
           g, Map{{g.rank() == 1 ? "logit" : "logits", torch::zeros(1)}});
     },
     "logit1("},
    {"Reduction",
     [](ProcessGroup g) {
       reduce(
           g,
           torch::zeros(2),
           g.rank() == 1 ? ReduceOp::kMean : ReduceOp::kMax);
     },
     "reduce() with mean was called on rank 1"},
    {"Operation",
     [](ProcessGroup g) {
       auto value = torch::zeros(2);
       if (g.rank() == 1) {
         broadcast(g, value, 0);
       } else {
         reduce(g, value);
       }
     },
     "broadcast() from rank 0 was called on rank 1"},
    {"Root",
     [](ProcessGroup g) {
       auto value = torch::zeros(2);
       broadcast(g, value, g.rank() == 1 ? 1 : 0);
     },
     "broadcast() from rank 1 was called on rank 1"},
    {"BroadcastShape",
     [](ProcessGroup g) {
       auto value = torch::zeros(g.rank() == 1 ? 3 : 2);
       broadcast(g, value, 0);
     },
     "broadcast() from rank 0 was called with shape [3] on rank 1"},
};

/// The errors on each rank, without the lines of the calls, which depend on
/// debug information.
std::vector<std::string> heard(const std::function<void(ProcessGroup)>& call) {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](ProcessGroup group) {
    try {
      call(group);
    } catch (const MismatchError& error) {
      messages[static_cast<size_t>(group.rank())] = std::regex_replace(
          std::string(error.what()),
          std::regex(R"((rank \d) \(.*?\)(?= but |\. [A-Z]))"),
          "$1");
    }
    group.barrier();
  });
  return messages;
}

TEST(Mismatch, BlamesNeitherOfTwoRanks) {
  EXPECT_THAT(
      heard([](ProcessGroup group) {
        all_gather(group, torch::zeros({2, 3 + group.rank()}));
      }),
      Each("gather() was called with shape [2, 4] on rank 1 but [2, 3] on rank "
           "0. Only the size of dimension 0 may differ between ranks"));
  EXPECT_THAT(
      heard([](ProcessGroup group) {
        group.rank() == 0 ? agree_on_text(group, "wait_for_everyone", "")
                          : static_cast<void>(reduce(group, 1.0));
      }),
      Each("reduce() with sum was called on rank 1 but wait_for_everyone() on "
           "rank 0. Call them on every rank in the same order. Is one of them "
           "inside `if (accelerator.is_main_process())`, or did a rank leave a "
           "loop early?"));
}

TEST(Mismatch, NamesTheLineOrFunctionOfTheCall) {
  std::string message;
  run_ranks(2, [&](ProcessGroup group) {
    try {
      all_gather(group, torch::zeros({2, 3 + group.rank()}));
    } catch (const MismatchError& error) {
      if (group.rank() == 0) {
        message = error.what();
      }
    }
  });
  // A file and a line, or a function if the program has no line numbers.
  EXPECT_THAT(message, ContainsRegex("on rank 1 .*[a-z]+.*. but"));
  EXPECT_THAT(message, ContainsRegex("on rank 0 [(].+[)]. Only"));
}

INSTANTIATE_TEST_SUITE_P(
    Collectives,
    Mismatched,
    ::testing::ValuesIn(kMismatches),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Collectives, RejectAnUnknownRoot) {
  ProcessGroup solo;
  auto value = torch::zeros(1);
  EXPECT_THAT(
      [&] { broadcast(solo, value, 1); },
      ThrowsMessage<UsageError>(
          "[broadcast] root is 1, expected a rank from 0 to 0"));
}

} // namespace
} // namespace accelerate
