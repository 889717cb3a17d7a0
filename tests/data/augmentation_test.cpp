// SPDX-License-Identifier: Apache-2.0
// The randomness of samples depends only on seed, epoch and index.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>
#include <numeric>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
/// What each sample became in an epoch.
using Drawn = std::map<int64_t, double>;
using Sample = std::pair<int64_t, double>;

struct Noisy {
  size_t size() const { return 37; }
  Sample get(int64_t index, at::Generator& generator) const {
    return {index, torch::rand({1}, generator, torch::kDouble).item<double>()};
  }
};

/// As above without the argument, for code deeper inside.
struct QuietlyNoisy {
  size_t size() const { return 37; }
  Sample get(int64_t index) const {
    const auto draw =
        torch::rand({1}, sample_generator(), torch::kDouble).item<double>();
    return {index, draw};
  }
};

void take(const auto& batch, Drawn& drawn) {
  for (int64_t i = 0; i < batch.first.size(0); ++i) {
    drawn[batch.first[i].template item<int64_t>()] =
        batch.second[i].template item<double>();
  }
}

template <class D>
Drawn epoch_of(int num_ranks, int num_workers, int64_t epoch, int num_batches) {
  Drawn drawn;
  std::mutex mutex;
  run_ranks(num_ranks, [&](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    const DataLoaderOptions options{
        .batch_size = 4,
        .shuffle = true,
        .seed = 5,
        .num_workers = num_workers};
    auto loader = accelerator.prepare(DataLoader(D(), options));
    loader.set_epoch(epoch);
    // Interrupted and resumed with another loader.
    auto rest = accelerator.prepare(DataLoader(D(), options));
    const auto take_all = [&](auto& source, int most) {
      for (auto& batch : source) {
        const std::lock_guard lock(mutex);
        take(batch, drawn);
        if (--most == 0) {
          rest.load_state_dict(source.state_dict());
          break;
        }
      }
    };
    take_all(loader, num_batches);
    if (num_batches > 0) {
      take_all(rest, 0);
    }
  });
  return drawn;
}

TEST(Augmentation, DependsOnSeedEpochAndIndexAlone) {
  const Drawn expected = epoch_of<Noisy>(1, 0, 3, 0);
  EXPECT_EQ(expected.size(), 37U);
  for (const int num_ranks : {1, 2}) {
    for (const int num_workers : {0, 1, 4}) {
      EXPECT_EQ(epoch_of<Noisy>(num_ranks, num_workers, 3, 0), expected);
      EXPECT_EQ(epoch_of<QuietlyNoisy>(num_ranks, num_workers, 3, 2), expected);
    }
  }
  // Consecutive indices and epochs are independent.
  const Drawn next = epoch_of<Noisy>(1, 0, 4, 0);
  std::set<double> different;
  for (const auto* epoch : {&expected, &next}) {
    for (const auto& [index, value] : *epoch) {
      different.insert(value);
    }
  }
  EXPECT_EQ(different.size(), 74U);
}

TEST(Augmentation, HasAGeneratorInSamplesOnly) {
  EXPECT_THAT(
      [] { sample_generator(); },
      ThrowsMessage<UsageError>(HasSubstr("is not reading a sample")));
}

// torch.utils.data.random_split(range(10), [0.55, 0.25, 0.2],
//     generator=torch.Generator().manual_seed(42)), as torch 2.11 gives it.
TEST(RandomSplit, GivesThePartsOfTorch) {
  std::vector<int64_t> samples(10);
  std::iota(samples.begin(), samples.end(), 0);
  auto parts = random_split(VectorDataset(samples), {0.55, 0.25, 0.2}, 42);
  std::vector<std::vector<int64_t>> found;
  for (auto& part : parts) {
    auto& indices = found.emplace_back();
    for (size_t i = 0; i < part.size(); ++i) {
      indices.push_back(part.get(static_cast<int64_t>(i)));
    }
  }
  EXPECT_THAT(
      found,
      ElementsAre(
          ElementsAre(2, 6, 1, 8, 4, 5), ElementsAre(0, 9), ElementsAre(3, 7)));
  EXPECT_THROW(
      random_split(VectorDataset(samples), {0.5, 0.6}, 42), UsageError);
}

TEST(PairDataset, YieldsPairs) {
  DataLoader loader(
      PairDataset(torch::arange(4), 2 * torch::arange(4)), {.batch_size = 2});
  for (auto& [input, target] : loader) {
    EXPECT_TRUE(target.equal(2 * input));
  }
}

} // namespace
} // namespace accelerate
