// SPDX-License-Identifier: Apache-2.0
// What ranks compare in steps that one of them records.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/distributed/c10d.h"
#include "training/comm/agreement.h"
#include "training/comm/hang_exchange.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

TEST(DeferredComparisons, ReplaysMatchRanksThatRunTheStep) {
  run_ranks(2, [](ProcessGroup group) {
    const auto run_step = [&] {
      agree_on_text(group, "forward", "");
      announce(group, "backward");
      finish_comparison(group);
    };
    if (group.rank() == 0) {
      std::vector<std::string> comparisons;
      {
        DeferredComparisons deferred(group);
        run_step(); // does not communicate
        comparisons = deferred.take();
      }
      EXPECT_THAT(comparisons, ElementsAre("forward", "backward"));
      repeat_comparisons(group, comparisons);
      run_step();
      repeat_comparisons(group, comparisons);
    } else {
      run_step();
      run_step();
      run_step();
    }
    EXPECT_EQ(group.all_gather(torch::ones(1)).numel(), 2);
  });
}

TEST(DeferredComparisons, NameARankThatCallsAnotherOperation) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] {
          if (group.rank() == 0) {
            repeat_comparisons(group, {"backward"});
          } else {
            agree_on_text(group, "forward", "");
          }
        },
        ThrowsMessage<MismatchError>(HasSubstr("rank 1")));
  });
}

TEST(DeferredComparisons, CannotCompareValues) {
  run_ranks(2, [](ProcessGroup group) {
    const DeferredComparisons deferred(group);
    EXPECT_THAT(
        [&] { all_gather(group, torch::ones(1)); },
        ThrowsMessage<UsageError>(StartsWith("[capture] gather")));
  });
}

TEST(CollectiveCounter, CountsWhatIsReplayed) {
  run_ranks(1, [](ProcessGroup group) {
    const auto carrier = to_c10d(group);
    const auto count = collective_counter(carrier);
    const auto before = *count();
    group.all_reduce(torch::ones(1), ReduceOp::kSum);
    EXPECT_EQ(*count(), before + 1);
    *uncounted_collectives(carrier) += 3;
    EXPECT_EQ(*count(), before + 4);
    EXPECT_EQ(*collective_counter(carrier)(), before + 4);
  });
}

} // namespace
} // namespace accelerate
