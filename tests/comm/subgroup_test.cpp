// SPDX-License-Identifier: Apache-2.0
// Groups of some ranks of a group.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <mutex>

#include "accelerate/distributed/c10d.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/error.h"
#include "support/rank_bodies.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;

int64_t sum_of(const ProcessGroup& group, int64_t own) {
  auto value = torch::full({1}, own, torch::kLong);
  group.all_reduce(value, ReduceOp::kSum);
  return value.item<int64_t>();
}

// Ranks 0 and 2, and ranks 1 and 3 of four: 0 + 2 and 1 + 3. Both kinds of
// groups are used alternately.
std::string sums_of_halves(const ProcessGroup& group) {
  const int first = group.rank() % 2;
  const auto half = group.subgroup({first, first + 2});
  std::string text = std::to_string(half.rank()) + " of " +
                     std::to_string(half.world_size()) + ":";
  for (const auto& each : {half, group, half}) {
    text += ' ' + std::to_string(sum_of(each, group.rank()));
  }
  return text;
}

const testing::RankBodyRegistration kHalves(
    "halves",
    [](const AcceleratorOptions& options) {
      return sums_of_halves(
          options.process_group ? *options.process_group
                                : ProcessGroup::connect(detect_environment()));
    });

class SubgroupOf : public ::testing::TestWithParam<testing::RankKind> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks,
    SubgroupOf,
    ::testing::Values(
        testing::RankKind::kThreads,
        testing::RankKind::kProcesses),
    ::testing::PrintToStringParamName());

TEST_P(SubgroupOf, ReducesOverItsRanksAlone) {
  EXPECT_THAT(
      testing::run_body(GetParam(), 4, "halves"),
      ElementsAre(
          "0 of 2: 2 6 2", "0 of 2: 4 6 4", "1 of 2: 2 6 2", "1 of 2: 4 6 4"));
}

TEST(Subgroup, WorksOnGroupsGivenFromOutside) {
  run_ranks(4, [](ProcessGroup group) {
    // Two handles to one group, as two Accelerators would have.
    for (int i = 0; i < 2; ++i) {
      const auto given = from_c10d(to_c10d(group));
      const auto expected = group.rank() % 2 == 0 ? ": 2 6 2" : ": 4 6 4";
      EXPECT_THAT(sums_of_halves(given), HasSubstr(expected));
    }
  });
}

TEST(Subgroup, NumbersItsRanksAsTheyAreListed) {
  run_ranks(3, [](ProcessGroup group) {
    const auto turned = group.subgroup({2, 0, 1});
    EXPECT_EQ(turned.rank(), (group.rank() + 1) % 3);
    const auto all = turned.all_gather(torch::full({1}, group.rank()));
    EXPECT_TRUE(all.flatten().equal(torch::tensor({2, 0, 1})));
  });
}

TEST(Subgroup, MayBeOneRankOrAll) {
  run_ranks(3, [](ProcessGroup group) {
    // Ranks 0 and 1 form a group, rank 2 belongs to none.
    const auto part = group.subgroup(
        group.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2});
    EXPECT_EQ(part.is_solo(), group.rank() == 2);
    EXPECT_EQ(sum_of(part, group.rank() + 1), 3);
    EXPECT_EQ(group.subgroup({0, 1, 2}).impl(), group.impl());
  });
  EXPECT_TRUE(ProcessGroup().subgroup({0}).is_solo());
}

TEST(Duplicate, HasCollectivesOfItsOwn) {
  run_ranks(2, [](ProcessGroup group) {
    const auto other = group.duplicate();
    EXPECT_EQ(other.rank(), group.rank());
    // In another order on one rank: each group counts separately.
    if (group.rank() == 0) {
      auto beside =
          std::async(std::launch::async, [&] { return sum_of(other, 1); });
      EXPECT_EQ(sum_of(group, 10), 20);
      EXPECT_EQ(beside.get(), 2);
    } else {
      auto beside =
          std::async(std::launch::async, [&] { return sum_of(group, 10); });
      EXPECT_EQ(sum_of(other, 1), 2);
      EXPECT_EQ(beside.get(), 20);
    }
  });
  EXPECT_TRUE(ProcessGroup().duplicate().is_solo());
}

TEST(Subgroup, MayBeASubgroupOfASubgroup) {
  run_ranks(4, [](ProcessGroup group) {
    if (const auto three = group.subgroup(
            group.rank() > 0 ? std::vector<int>{1, 2, 3} : std::vector<int>{0});
        !three.is_solo()) {
      const auto two = three.subgroup(
          three.rank() > 0 ? std::vector<int>{1, 2} : std::vector<int>{0});
      EXPECT_EQ(sum_of(two, group.rank()), group.rank() == 1 ? 1 : 5);
    }
  });
}

struct WrongList {
  const char* name;
  std::vector<int> ranks;
};

class RefusedSubgroup : public ::testing::TestWithParam<WrongList> {};
INSTANTIATE_TEST_SUITE_P(
    Lists,
    RefusedSubgroup,
    ::testing::Values(
        WrongList{"Empty", {}},
        WrongList{"WithoutThisRank", {0}},
        WrongList{"Twice", {1, 1}},
        WrongList{"OutOfRange", {1, 3}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RefusedSubgroup, IsTheSameErrorOnAllRanks) {
  run_ranks(3, [](ProcessGroup group) {
    const auto lists =
        std::vector<std::vector<int>>{{0, 1}, GetParam().ranks, {2}};
    EXPECT_THAT(
        [&] { group.subgroup(lists[static_cast<size_t>(group.rank())]); },
        ThrowsMessage<UsageError>(
            HasSubstr("[subgroup] rank 1 passed the ranks [")));
    // The group is still usable.
    EXPECT_EQ(sum_of(group, 1), 3);
  });
}

TEST(Subgroup, ThrowsTheSameErrorOnAllRanksIfListsDiffer) {
  // Each list is valid on its own.
  const std::vector<std::vector<std::vector<int>>> wrong = {
      {{0, 1}, {1}, {2}},
      {{0, 1}, {1, 0}, {2}},
      {{0, 1, 2}, {0, 1}, {2}},
      {{0, 1}, {1, 2}, {1, 2}}};
  run_ranks(3, [&](ProcessGroup group) {
    for (const auto& lists : wrong) {
      EXPECT_THAT(
          [&] { group.subgroup(lists[static_cast<size_t>(group.rank())]); },
          ThrowsMessage<MismatchError>(AllOf(
              HasSubstr("[subgroup] rank 0 passed the ranks [0, 1"),
              HasSubstr("but rank 1 passed"))));
      EXPECT_EQ(sum_of(group, 1), 3);
    }
  });
}

TEST(Subgroup, EndsWithItsGroup) {
  run_ranks(4, [](ProcessGroup group) {
    const int first = group.rank() / 2 * 2;
    const auto pair = group.subgroup({first, first + 1});
    group.barrier();
    group.shutdown();
    EXPECT_THROW(pair.barrier(), UsageError);
  });
}

TEST(Subgroup, LeavesNothingInTheStore) {
  run_ranks(3, [](ProcessGroup group) {
    const auto num_keys_after_one_more = [&] {
      group.subgroup({2, 1, 0});
      group.barrier();
      const auto num_keys = to_c10d(group)->getStore()->getNumKeys();
      group.barrier();
      return num_keys;
    };
    const auto first = num_keys_after_one_more();
    EXPECT_EQ(num_keys_after_one_more(), first);
  });
}

TEST(Subgroup, KeepsTheTimeout) {
  const auto run = [] {
    run_ranks(
        3,
        [](ProcessGroup group) {
          const auto pair = group.subgroup(
              group.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2});
          if (group.rank() == 0) {
            pair.barrier();
          } else {
            std::this_thread::sleep_for(1500ms);
          }
        },
        {.timeout = 300ms});
  };
  EXPECT_THAT(
      run,
      ThrowsMessage<TimeoutError>(
          AllOf(HasSubstr("[barrier]"), HasSubstr("on rank 0"))));
}

} // namespace
} // namespace accelerate
