// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data_loader.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <set>

#include "accelerate/error.h"
#include "data/sources.h"

namespace accelerate {
namespace {

using namespace accelerate::testing; // NOLINT
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Indices = std::vector<int64_t>;
using Batches = std::vector<Indices>;

TEST(DataLoader, GivesAllSamplesInOrderOnASingleProcess) {
  DataLoader loader(numbers(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loader.total_batch_size(), 2);
  std::vector<int64_t> seen;
  for (auto& batch : loader) {
    EXPECT_TRUE((batch[0] * 10).equal(batch[1]));
    for (const int64_t id : to_vector(batch[0])) {
      seen.push_back(id);
    }
  }
  EXPECT_EQ(seen, (Indices{0, 1, 2, 3, 4}));
}

TEST(DataLoader, ReshufflesEveryEpochAndRepeatsAnEpochOnRequest) {
  DataLoader loader(
      numbers(50), {.batch_size = 50, .shuffle = true, .seed = 1});
  const auto epoch = [&] { return (*loader.begin())[0]; };
  const auto first = epoch();
  EXPECT_FALSE(epoch().equal(first));
  loader.set_epoch(0);
  EXPECT_TRUE(epoch().equal(first));
}

struct Point {
  torch::Tensor x;
  torch::Tensor y;
};
auto tensor_fields(Point& p) {
  return std::tie(p.x, p.y);
}

struct Line {
  size_t size() const { return 4; }
  Point get(int64_t i) const { return {torch::full({2}, i), torch::tensor(i)}; }
};

TEST(DataLoader, StacksTheSamplesOfACustomDataset) {
  DataLoader loader(Line{}, {.batch_size = 4});
  Point batch = *loader.begin();
  EXPECT_EQ(batch.x.sizes(), (torch::IntArrayRef{4, 2}));
  EXPECT_TRUE(batch.y.equal(torch::arange(4)));
}

TEST(DataLoader, TakesVectorsStreamsAndACustomCollateFunction) {
  DataLoader words(
      std::vector<std::string>{"one", "two", "three"}, {.batch_size = 2});
  EXPECT_THAT(*words.begin(), ElementsAre("one", "two"));
  DataLoader lengths(
      std::vector<std::string>{"one", "two", "three"},
      {.batch_size = 3},
      [](const std::vector<std::string>& texts) {
        size_t sum = 0;
        for (const auto& text : texts) {
          sum += text.size();
        }
        return sum;
      });
  EXPECT_EQ(*lengths.begin(), 11U);
  DataLoader stream(Counter{.size = 5}, {.batch_size = 2});
  auto [placed, state] = place(stream);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto seen = run_loop(placed, *state);
    EXPECT_EQ(seen.batches, (Batches{{0, 1}, {2, 3}, {4}}));
    EXPECT_THAT(seen.is_last, ElementsAre(false, false, true));
  }
}

TEST(DataLoader, GivesTheSameBatchesWithAnyNumberOfWorkers) {
  const auto run = [](int num_workers, int64_t prefetch_factor) {
    DataLoader loader(
        numbers(100),
        {.batch_size = 7,
         .shuffle = true,
         .seed = 5,
         .num_workers = num_workers,
         .prefetch_factor = prefetch_factor});
    auto [placed, state] = place(loader);
    std::vector<Batches> epochs;
    for (int epoch = 0; epoch < 3; ++epoch) {
      // The second is left early: the third must not be affected.
      const auto seen = run_loop(placed, *state, epoch == 1 ? 2 : 1000);
      epochs.push_back(seen.batches);
    }
    return epochs;
  };
  const auto expected = run(0, 2);
  EXPECT_EQ(expected[0].size(), 15U);
  for (const int num_workers : {1, 2, 5}) {
    for (const int64_t prefetch_factor : {1, 3}) {
      EXPECT_EQ(run(num_workers, prefetch_factor), expected) << num_workers;
    }
  }
}

struct ThreadCounter {
  size_t size() const { return 4; }
  int64_t get(int64_t /*index*/) const { return at::get_num_threads(); }
};

TEST(DataLoader, OperatorsOfWorkersStartNoThreadsOfTheirOwn) {
  at::set_num_threads(3);
  DataLoader loader(ThreadCounter{}, {.batch_size = 2, .num_workers = 2});
  for (auto& batch : loader) {
    EXPECT_TRUE(batch.eq(1).all().item<bool>());
  }
  // The setting is unchanged elsewhere.
  EXPECT_EQ(at::get_num_threads(), 3);
  DataLoader without_workers(ThreadCounter{}, {.batch_size = 4});
  EXPECT_TRUE((*without_workers.begin()).eq(3).all().item<bool>());
  at::set_num_threads(1);
}

TEST(DataLoader, TakesSamplersAndBatchesOfVaryingSize) {
  struct Triangle final : BatchSampler {
    Batches batches(uint64_t, int64_t) const override {
      return {{0}, {1, 2}, {3, 4, 5}};
    }
  };
  DataLoader varying(
      numbers(6), {.batch_sampler = std::make_shared<Triangle>()});
  EXPECT_EQ(varying.size(), 3);
  auto [placed, state] = place(varying);
  EXPECT_EQ(
      run_loop(placed, *state).batches, (Batches{{0}, {1, 2}, {3, 4, 5}}));
  DataLoader weighted(
      numbers(3),
      {.batch_size = 4,
       .sampler = std::make_shared<WeightedRandomSampler>(
           std::vector<double>{0, 1, 0}, 4)});
  EXPECT_EQ(to_vector((*weighted.begin())[0]), (Indices{1, 1, 1, 1}));
}

// --- faults -----------------------------------------------------------------

TEST(DataLoaderFaults, NamesTheSampleInPlaceOfItsBatch) {
  for (const int num_workers : {0, 2}) {
    DataLoader loader(
        Faulty{.num_samples = 20, .fails_at = 9},
        {.batch_size = 4, .num_workers = num_workers});
    int num_batches = 0;
    try {
      for (auto& batch : loader) {
        EXPECT_EQ(batch.size(0), 4);
        ++num_batches;
      }
      FAIL() << "nothing was thrown";
    } catch (const DataError& error) {
      EXPECT_THAT(
          error.what(), HasSubstr("reading sample 9: the disk is gone"));
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }
    EXPECT_EQ(num_batches, 2);
  }
  DataLoader stream(Counter{.size = 9, .fails_at = 5}, {.batch_size = 2});
  int num_batches = 0;
  EXPECT_THAT(
      [&] {
        for (auto& batch : stream) {
          num_batches += batch.defined() ? 1 : 0;
        }
      },
      ThrowsMessage<DataError>(HasSubstr("reading sample 5")));
  EXPECT_EQ(num_batches, 2);
}

TEST(DataLoaderFaults, NamesTheSamplesThatDoNotFitTogether) {
  std::vector<torch::Tensor> ragged = {
      torch::zeros(2), torch::zeros(2), torch::zeros(2), torch::zeros(3)};
  DataLoader loader(ragged, {.batch_size = 2, .num_workers = 1});
  auto it = loader.begin();
  EXPECT_THAT(
      [&] { ++it; },
      ThrowsMessage<DataError>(HasSubstr("collating samples 2, 3")));
}

TEST(DataLoaderFaults, AnEmptyDatasetHasNoBatch) {
  for (const int num_workers : {0, 2}) {
    DataLoader loader(numbers(0), {.num_workers = num_workers});
    EXPECT_EQ(loader.size(), 0);
    EXPECT_TRUE(loader.begin() == loader.end());
  }
  DataLoader stream(Counter{}, {.num_workers = 1});
  EXPECT_TRUE(stream.begin() == stream.end());
  EXPECT_THAT(
      [&] { stream.size(); },
      ThrowsMessage<UsageError>(HasSubstr("not known in advance")));
}

TEST(DataLoaderFaults, RefusesOptionsThatContradictEachOther) {
  const auto sampler = std::make_shared<RandomSampler>(2);
  const std::pair<DataLoaderOptions, const char*> cases[] = {
      {{.batch_size = 0}, "batch_size is 0"},
      {{.batch_size = int64_t{1} << 62}, "expected 1 to 2^40"},
      {{.num_workers = -1}, "num_workers is -1"},
      {{.num_workers = 1, .prefetch_factor = 0}, "prefetch_factor is 0"},
      {{.shuffle = true, .sampler = sampler},
       "sampler and shuffle are both set"},
  };
  for (const auto& [options, message] : cases) {
    EXPECT_THAT(
        [&options = options] { DataLoader(numbers(2), options); },
        ThrowsMessage<UsageError>(HasSubstr(message)));
  }
  EXPECT_THAT(
      [] { DataLoader(Counter{}, {.shuffle = true}); },
      ThrowsMessage<UsageError>(HasSubstr("does not support shuffle")));
  DataLoader split(numbers(6), {.batch_size = 5, .split_batches = true});
  EXPECT_THAT(
      [&] {
        place(split, {0, 2});
      },
      ThrowsMessage<UsageError>(HasSubstr("must be a multiple")));
}

TEST(DataLoaderFaults, AWorkerNeverOutlivesItsLoader) {
  const auto num_read = std::make_shared<std::atomic<int>>(0);
  {
    DataLoader loader(
        Faulty{.num_samples = 1000, .num_read = num_read},
        {.num_workers = 3, .prefetch_factor = 4});
    auto it = loader.begin();
    ++it;
  }
  // Two were returned, twelve were allowed ahead; and reading has stopped.
  EXPECT_LE(num_read->load(), 2 + 12);
  EXPECT_EQ(num_read.use_count(), 1);
}

// --- resuming ---------------------------------------------------------------

TEST(Resume, SkippedBatchesOfAMapDatasetAreNotRead) {
  const Faulty data{.num_samples = 20};
  const DataLoader loader(data, {.batch_size = 4});
  auto rest = skip_first_batches(loader, 3);
  EXPECT_EQ(rest.size(), 2);
  auto [placed, state] = place(rest);
  EXPECT_EQ(
      run_loop(placed, *state).batches,
      (Batches{{12, 13, 14, 15}, {16, 17, 18, 19}}));
  EXPECT_EQ(data.num_read->load(), 8);
  auto stream =
      skip_first_batches(DataLoader(Counter{.size = 5}, {.batch_size = 2}), 1);
  EXPECT_EQ(to_vector(*stream.begin()), (Indices{2, 3}));
}

TEST(Resume, ASkippingLoaderCountsEpochsTogetherWithItsOriginal) {
  DataLoader loader(numbers(8), {.batch_size = 8, .shuffle = true, .seed = 2});
  auto skipping = skip_first_batches(loader, 0);
  const auto first = (*skipping.begin())[0];
  EXPECT_FALSE((*loader.begin())[0].equal(first));
}

template <class Loader>
void check_resume(const Loader& loader, bool is_source_sharded) {
  for (int saved_ranks = 1; saved_ranks <= 4; ++saved_ranks) {
    std::vector<Seen> whole;
    for (int rank = 0; rank < saved_ranks; ++rank) {
      auto [placed, state] = place(loader, {rank, saved_ranks});
      placed.set_epoch(3);
      whole.push_back(run_loop(placed, *state));
    }
    // Parts of a source may differ in length: stop where all ranks are in step.
    size_t last_stop = whole[0].batches.size();
    for (const auto& seen : whole) {
      last_stop = std::min(last_stop, seen.batches.size());
    }
    for (size_t stop = 0; stop <= last_stop; ++stop) {
      std::vector<int64_t> before;
      std::vector<StateDict> saved;
      for (int rank = 0; rank < saved_ranks; ++rank) {
        auto [placed, state] = place(loader, {rank, saved_ranks});
        placed.set_epoch(3);
        const auto seen = run_loop(placed, *state, static_cast<int64_t>(stop));
        before.insert(before.end(), seen.real.begin(), seen.real.end());
        saved.push_back(placed.state_dict());
        EXPECT_EQ(
            saved.back().get<int64_t>("num_done"),
            saved.front().get<int64_t>("num_done"));
      }
      for (int ranks = 1; ranks <= 4; ++ranks) {
        if (is_source_sharded && ranks != saved_ranks) {
          continue;
        }
        auto all = before;
        for (int rank = 0; rank < ranks; ++rank) {
          auto [placed, state] = place(loader, {rank, ranks});
          placed.load_state_dict(saved[0]);
          const auto seen = run_loop(placed, *state);
          all.insert(all.end(), seen.real.begin(), seen.real.end());
          if (ranks == saved_ranks) {
            const auto& batches = whole[static_cast<size_t>(rank)].batches;
            EXPECT_EQ(
                seen.batches,
                Batches(
                    batches.begin() + static_cast<std::ptrdiff_t>(stop),
                    batches.end()));
          }
          // What comes after is the next epoch, from its start.
          EXPECT_EQ(placed.state_dict().template get<int64_t>("epoch"), 4);
          EXPECT_EQ(placed.state_dict().template get<int64_t>("num_done"), 0);
        }
        std::sort(all.begin(), all.end());
        EXPECT_EQ(all, to_vector(torch::arange(37)))
            << saved_ranks << " to " << ranks << " ranks after " << stop;
      }
    }
  }
}

TEST(Resume, ResumesAtEveryBatchWithAnyNumberOfRanks) {
  for (const int num_workers : {0, 2}) {
    check_resume(
        DataLoader(
            numbers(37),
            {.batch_size = 3,
             .shuffle = true,
             .seed = 11,
             .num_workers = num_workers}),
        false);
  }
}

TEST(Resume, ResumesInSplitBatchesAndStreams) {
  check_resume(
      DataLoader(
          numbers(37),
          {.batch_size = 12,
           .shuffle = true,
           .seed = 1,
           .split_batches = true}),
      false);
  check_resume(DataLoader(Counter{.size = 37}, {.batch_size = 4}), false);
  check_resume(
      DataLoader(
          Counter{.size = 37},
          {.batch_size = 3,
           // A single rank has nothing to even out.
           .even_batches = false,
           .num_workers = 2,
           .iterable_sharding = IterableSharding::kSource}),
      true);
}

TEST(Resume, WhatWorkersReadAheadDoesNotCount) {
  DataLoader loader(
      numbers(100), {.batch_size = 2, .num_workers = 2, .prefetch_factor = 8});
  auto it = loader.begin();
  ++it;
  EXPECT_EQ(loader.state_dict().get<int64_t>("num_done"), 4);
}

TEST(Resume, RejectsAStateOfOtherData) {
  const auto state = DataLoader(numbers(10)).state_dict();
  EXPECT_THAT(
      [&] { DataLoader(numbers(11)).load_state_dict(state); },
      ThrowsMessage<UsageError>(
          HasSubstr("num_samples = 10, but this loader has 11")));
  EXPECT_THAT(
      [&] {
        DataLoader(numbers(10), {.shuffle = true}).load_state_dict(state);
      },
      ThrowsMessage<UsageError>(
          HasSubstr("shuffle = false, but this loader has true")));
}

// --- memory and devices -----------------------------------------------------

int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident;
}

TEST(DataLoaderSoak, TenThousandEpochsTakeNoMemory) {
  DataLoader loader(numbers(12), {.batch_size = 4, .num_workers = 2});
  auto [placed, state] = place(loader);
  const auto run = [&, &placed = placed](int num_epochs) {
    int64_t sum = 0;
    for (int epoch = 0; epoch < num_epochs; ++epoch) {
      for (auto& batch : placed) {
        sum += batch[0].size(0);
        if (epoch % 3 == 0) {
          break;
        }
      }
    }
    return sum;
  };
  run(1000);
  const int64_t before = resident_pages();
  EXPECT_GT(run(10000), 0);
  // A page is 4 KiB: half a megabyte is allocator noise, whereas 10,000 leaked
  // batches or threads would be many megabytes.
  EXPECT_LT(resident_pages() - before, 128);
}

TEST(DataLoaderGpu, TheNextBatchIsPinnedAndCopiedAhead) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  for (const int num_workers : {0, 2}) {
    DataLoader loader(
        numbers(1000),
        {.batch_size = 8,
         .shuffle = true,
         .seed = 4,
         .num_workers = num_workers});
    auto expected = place(loader).first;
    auto placed = loader.prepared({.device = c10::Device(c10::kCUDA, 0)});
    auto on_cpu = expected.begin();
    auto sum =
        torch::zeros({}, torch::dtype(torch::kLong).device(torch::kCUDA));
    int64_t num_batches = 0;
    for (auto& batch : placed) {
      ASSERT_TRUE(batch[0].is_cuda());
      // Work on the loop's stream while the next batch is copied beside it.
      sum += (batch[1] - batch[0] * 10).abs().sum();
      if (num_batches++ % 10 == 0) {
        EXPECT_TRUE(batch[0].cpu().equal((*on_cpu)[0]));
      }
      ++on_cpu;
    }
    EXPECT_EQ(num_batches, 125);
    EXPECT_EQ(sum.item<int64_t>(), 0);
  }
}

/// 0 to 7, with one line that cannot be read before 2.
struct Hiccup {
  void reset(int64_t /*epoch*/) {
    next_value = 0;
    has_failed = false;
  }
  std::optional<int64_t> next() {
    if (next_value == 2 && !std::exchange(has_failed, true)) {
      throw std::runtime_error("line 3 is torn");
    }
    return next_value < 8 ? std::optional(next_value++) : std::nullopt;
  }
  int64_t next_value = 0;
  bool has_failed = false;
};

TEST(DataLoaderFaults, AStreamEndsAfterAnExceptionOfItsSource) {
  for (const int workers : {0, 1}) {
    DataLoader loader(Hiccup{}, {.batch_size = 4, .num_workers = workers});
    EXPECT_THAT(
        [&] {
          for (auto& batch : loader) {
            batch.sum();
          }
        },
        ThrowsMessage<std::exception>(HasSubstr("line 3 is torn")));
  }
}

TEST(Resume, OfALoaderThatSkipsCountsTheSkippedOnce) {
  DataLoader loader(numbers(12), {.batch_size = 2});
  auto rest = skip_first_batches(loader, 2);
  StateDict state;
  for (auto& batch : rest) {
    EXPECT_EQ(to_vector(batch[0])[0], 4);
    state = rest.state_dict();
    break;
  }
  auto again =
      skip_first_batches(DataLoader(numbers(12), {.batch_size = 2}), 2);
  again.load_state_dict(state);
  auto first = again.begin();
  EXPECT_EQ(to_vector((*first)[0])[0], 6);
}

} // namespace
} // namespace accelerate
