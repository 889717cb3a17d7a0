// SPDX-License-Identifier: Apache-2.0
// Loaders of several ranks that communicate.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "accelerate/accelerator.h"
#include "accelerate/distributed/mesh.h"
#include "accelerate/error.h"
#include "data/sources.h"
#include "support/rank_bodies.h"

namespace accelerate {
namespace {

using namespace accelerate::testing; // NOLINT
using ::testing::HasSubstr;
using Indices = std::vector<int64_t>;

/// What all ranks saw in one epoch.
struct Epoch {
  /// Everything that was returned, by rank.
  std::vector<Indices> handed_out;
  /// The results of `gather_for_metrics` over the epoch, on each rank.
  std::vector<Indices> gathered;
};

template <class Loader>
void run_epoch(
    Accelerator& accelerator,
    const Loader& dataloader,
    bool gathers,
    Epoch& epoch) {
  auto loader = accelerator.prepare(dataloader);
  const auto rank = static_cast<size_t>(accelerator.process_index());
  for (auto& batch : loader) {
    for (const int64_t id : to_vector(ids(batch))) {
      epoch.handed_out[rank].push_back(id);
    }
    if (gathers) {
      for (const int64_t id :
           to_vector(accelerator.gather_for_metrics(ids(batch)))) {
        epoch.gathered[rank].push_back(id);
      }
    }
  }
}

/// Runs `make_loader(c)` for each case c on 1 to 4 threads: all epochs of all
/// cases. Cases share the ranks, because connecting takes longer than an epoch.
template <class MakeLoader>
std::vector<std::vector<Epoch>>
run_on_ranks(bool gathers, size_t num_cases, const MakeLoader& make_loader) {
  std::vector<std::vector<Epoch>> epochs(num_cases);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (auto& of_case : epochs) {
      const std::vector<Indices> nothing(static_cast<size_t>(ranks));
      of_case.push_back({.handed_out = nothing, .gathered = nothing});
    }
    run_ranks(ranks, [&](ProcessGroup group) {
      for (size_t c = 0; c < num_cases; ++c) {
        Accelerator accelerator({.cpu = true, .process_group = group});
        run_epoch(accelerator, make_loader(c), gathers, epochs[c].back());
      }
    });
  }
  return epochs;
}

// Empty, smaller than the ranks, uneven, even for all numbers of ranks.
constexpr int64_t kSizes[] = {0, 3, 29, 48};

struct ModeCase {
  const char* name;
  DataLoaderOptions options;
};
// 12 is a multiple of 1 to 4 ranks for the split modes.
const ModeCase kModes[] = {
    {"shard", {.batch_size = 4}},
    {"shard_workers", {.batch_size = 4, .num_workers = 2}},
    {"split", {.batch_size = 12, .split_batches = true}},
    {"dispatch", {.batch_size = 4, .dispatch_batches = true}},
    {"dispatch_workers",
     {.batch_size = 4, .num_workers = 2, .dispatch_batches = true}},
    {"dispatch_split",
     {.batch_size = 12, .split_batches = true, .dispatch_batches = true}},
};

class Modes : public ::testing::TestWithParam<ModeCase> {};
INSTANTIATE_TEST_SUITE_P(
    All,
    Modes,
    ::testing::ValuesIn(kModes),
    [](const auto& info) { return info.param.name; });

Indices sorted(std::vector<Indices> parts) {
  Indices all;
  for (const auto& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

int64_t total_batch(const DataLoaderOptions& options, size_t ranks) {
  return options.split_batches
             ? options.batch_size
             : options.batch_size * static_cast<int64_t>(ranks);
}

TEST_P(Modes, MetricsAreThoseOfOneProcessAndOnlyTheEndIsRepeated) {
  auto options = GetParam().options;
  options.shuffle = true;
  options.seed = 7;
  const auto epochs = run_on_ranks(true, std::size(kSizes), [&](size_t c) {
    return DataLoader(numbers(kSizes[c]), options);
  });
  for (size_t c = 0; c < std::size(kSizes); ++c) {
    const int64_t size = kSizes[c];
    // The metric of one process: each sample once, in the order of the epoch.
    const Indices expected = RandomSampler(size).order(7, 0);
    for (const auto& epoch : epochs[c]) {
      const size_t ranks = epoch.gathered.size();
      for (const auto& gathered : epoch.gathered) {
        EXPECT_EQ(gathered, expected) << ranks << " ranks, size " << size;
      }
      const int64_t total = total_batch(options, ranks);
      const auto all = sorted(epoch.handed_out);
      const auto filled_up =
          ranks == 1 ? size : (size + total - 1) / total * total;
      EXPECT_EQ(static_cast<int64_t>(all.size()), filled_up);
      for (int64_t id = 0; id < size; ++id) {
        EXPECT_TRUE(std::binary_search(all.begin(), all.end(), id));
      }
    }
  }
}

// Ranks 0 and 1 share their data, and so do ranks 2 and 3.
TEST_P(Modes, RanksThatDifferInNoDataDimensionGetTheSameBatches) {
  std::vector<Indices> seen(4);
  run_ranks(4, [&](ProcessGroup group) {
    const Mesh mesh(group, {.shard = 2, .tensor = 2});
    const auto& data = mesh.group(MeshDimension::kData);
    DataLoader loader(numbers(24), GetParam().options);
    auto placed = loader.prepared(
        {.group = data, .shard = {data.rank(), data.world_size()}});
    for (auto& batch : placed) {
      for (const int64_t id : to_vector(ids(batch))) {
        seen[static_cast<size_t>(group.rank())].push_back(id);
      }
    }
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[2], seen[3]);
  Indices all(24);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted({seen[0], seen[2]}), all);
}

TEST_P(Modes, WithoutEvenBatchesEachSampleComesOnceOrTheEndIsDropped) {
  auto options = GetParam().options;
  options.even_batches = false;
  const auto epochs = run_on_ranks(false, 2, [&](size_t drops) {
    auto own = options;
    own.drop_last = drops == 1;
    return DataLoader(numbers(29), own);
  });
  for (size_t drops = 0; drops < 2; ++drops) {
    for (const auto& epoch : epochs[drops]) {
      const int64_t total = total_batch(options, epoch.handed_out.size());
      const int64_t count = drops == 1 ? 29 / total * total : 29;
      EXPECT_EQ(sorted(epoch.handed_out), to_vector(torch::arange(count)));
    }
  }
}

TEST_P(Modes, StreamsGiveTheMetricsOfOneProcess) {
  const auto epochs = run_on_ranks(true, std::size(kSizes), [&](size_t c) {
    return DataLoader(Counter{.size = kSizes[c]}, GetParam().options);
  });
  for (size_t c = 0; c < std::size(kSizes); ++c) {
    for (const auto& epoch : epochs[c]) {
      for (const auto& gathered : epoch.gathered) {
        EXPECT_EQ(gathered, to_vector(torch::arange(kSizes[c])))
            << epoch.gathered.size() << " ranks, size " << kSizes[c];
      }
    }
  }
}

TEST(SourceSharding, PartsOfUnequalLengthEndTogether) {
  // Without and with two workers, padded and dropped.
  const auto epochs = run_on_ranks(true, 4, [](size_t c) {
    return DataLoader(
        Counter{.size = 50},
        {.batch_size = 2,
         .drop_last = c % 2 == 1,
         .num_workers = static_cast<int>(c / 2 * 2),
         .iterable_sharding = IterableSharding::kSource});
  });
  for (size_t c = 0; c < epochs.size(); ++c) {
    const bool drops = c % 2 == 1;
    for (const auto& epoch : epochs[c]) {
      for (auto real : epoch.gathered) {
        std::sort(real.begin(), real.end());
        if (drops) {
          // A subset without duplicates.
          EXPECT_EQ(std::unique(real.begin(), real.end()), real.end());
          EXPECT_GE(real.size(), 20U);
        } else {
          EXPECT_EQ(real, to_vector(torch::arange(50)));
        }
      }
      for (const auto& handed_out : epoch.handed_out) {
        if (drops) {
          EXPECT_EQ(handed_out.size(), epoch.handed_out[0].size());
        }
      }
    }
  }
}

TEST(SourceSharding, AFailureOfOneRankReachesAll) {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    // Element 4 is rank 1's.
    auto loader = accelerator.prepare(DataLoader(
        Counter{.size = 30, .fails_at = 4},
        {.iterable_sharding = IterableSharding::kSource}));
    int num_batches = 0;
    try {
      for (auto& batch : loader) {
        num_batches += static_cast<int>(batch.size(0));
      }
    } catch (const DataError& error) {
      messages[static_cast<size_t>(group.rank())] = error.what();
    }
    EXPECT_EQ(num_batches, 1);
  });
  EXPECT_THAT(messages[0], HasSubstr("Rank 1 failed to read"));
  EXPECT_THAT(messages[0], HasSubstr("the disk is gone"));
  EXPECT_THAT(messages[1], HasSubstr("the disk is gone"));
}

/// One rank's part does not exist.
struct Unmounted : Counter {
  void shard(int64_t index, int64_t count) {
    if (index == 1) {
      throw std::runtime_error("part 1 is not mounted");
    }
    Counter::shard(index, count);
  }
};

TEST(SourceSharding, AFailureToOpenAPartReachesAll) {
  for (const int64_t num_skipped : {0, 1}) {
    std::vector<std::string> messages(3);
    run_ranks(3, [&](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      auto loader = skip_first_batches(
          accelerator.prepare(DataLoader(
              Unmounted{{.size = 30}},
              {.iterable_sharding = IterableSharding::kSource})),
          num_skipped);
      try {
        for (auto& batch : loader) {
          ADD_FAILURE() << "got a batch of " << batch.size(0);
        }
      } catch (const std::exception& error) {
        messages[static_cast<size_t>(group.rank())] = error.what();
      }
      accelerator.wait_for_everyone();
    });
    const std::string told =
        "[DataLoader] Rank 1 failed to read its next batch: part 1 is not "
        "mounted";
    EXPECT_EQ(messages[0], told);
    EXPECT_EQ(messages[1], "part 1 is not mounted");
    EXPECT_EQ(messages[2], told);
  }
}

// --- dispatch ---------------------------------------------------------------

struct Review {
  std::string text;
  int64_t stars = 0;
  std::map<std::string, torch::Tensor> tokens;
  std::optional<torch::Tensor> mask;
};
auto tensor_fields(Review& r) {
  return std::tie(r.text, r.stars, r.tokens, r.mask);
}

TEST(Dispatch, SendsStructsWithTextsNumbersAndTensorsOfVaryingShape) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    std::vector<int64_t> lengths = {3, 1, 4, 1, 5, 9, 2, 6};
    // Only rank 0 has the data.
    std::vector<int64_t> data =
        group.rank() == 0 ? lengths : std::vector<int64_t>{};
    DataLoader dataloader(
        data,
        {.batch_size = 1, .dispatch_batches = true},
        [](const std::vector<int64_t>& samples) {
          const int64_t length = samples[0];
          return Review{
              .text = std::string(static_cast<size_t>(length), 'x'),
              .stars = length,
              .tokens =
                  {{"ids", torch::full({1, length}, length)},
                   {"half", torch::full({1, 2}, 0.5, torch::kHalf)}},
              .mask = length > 4 ? std::optional(torch::ones({1, length}))
                                 : std::nullopt};
        });
    auto loader = accelerator.prepare(dataloader);
    EXPECT_EQ(loader.num_samples(), 8);
    EXPECT_EQ(loader.size(), 3);
    size_t at = static_cast<size_t>(group.rank());
    for (auto& batch : loader) {
      const int64_t length = lengths[at % 8];
      at += 3;
      EXPECT_EQ(batch.text.size(), static_cast<size_t>(length));
      EXPECT_EQ(batch.stars, length);
      EXPECT_TRUE(
          batch.tokens.at("ids").equal(torch::full({1, length}, length)));
      EXPECT_EQ(batch.tokens.at("half").scalar_type(), torch::kHalf);
      EXPECT_EQ(batch.mask.has_value(), length > 4);
      // Each tensor can be modified independently.
      batch.tokens.at("ids").add_(1);
      EXPECT_TRUE(batch.tokens.at("half").eq(0.5).all().item<bool>());
    }
  });
}

TEST(Dispatch, ExceptionsOfRankZeroReachAllRanksAtTheSameBatch) {
  for (const int num_workers : {0, 2}) {
    std::vector<std::string> messages(3);
    run_ranks(3, [&](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      const Faulty data{.num_samples = 40, .fails_at = 25};
      auto loader = accelerator.prepare(DataLoader(
          data,
          {.batch_size = 4,
           .num_workers = num_workers,
           .dispatch_batches = true}));
      int num_batches = 0;
      try {
        for (auto& batch : loader) {
          num_batches += static_cast<int>(batch.size(0)) / 4;
        }
      } catch (const DataError& error) {
        messages[static_cast<size_t>(group.rank())] = error.what();
      }
      EXPECT_EQ(num_batches, 2);
      if (group.rank() != 0) {
        EXPECT_EQ(data.num_read->load(), 0);
      }
      // The group is still usable.
      accelerator.wait_for_everyone();
    });
    EXPECT_THAT(messages[0], HasSubstr("reading sample 25: the disk is gone"));
    EXPECT_THAT(
        messages[1], HasSubstr("Rank 0 failed to read a batch for all ranks"));
    EXPECT_THAT(messages[2], HasSubstr("sample 25: the disk is gone"));
  }
}

TEST(Dispatch, ASamplerThatFailsOnRankZeroReachesAllRanks) {
  struct Batches final : BatchSampler {
    explicit Batches(int rank) : rank(rank) {}
    std::vector<std::vector<int64_t>> batches(uint64_t, int64_t)
        const override {
      if (rank == 0) {
        throw std::runtime_error("no list of lengths");
      }
      return {{0, 1}, {2}};
    }
    int rank;
  };
  std::vector<std::string> messages(2);
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    auto loader = accelerator.prepare(DataLoader(
        numbers(3),
        {.batch_sampler = std::make_shared<Batches>(group.rank()),
         .dispatch_batches = true}));
    try {
      for (auto& batch : loader) {
        ADD_FAILURE() << "got a batch of " << batch[0].size(0);
      }
    } catch (const std::exception& error) {
      messages[static_cast<size_t>(group.rank())] = error.what();
    }
    accelerator.wait_for_everyone();
  });
  EXPECT_EQ(messages[0], "no list of lengths");
  EXPECT_EQ(
      messages[1],
      "[DataLoader] Rank 0 failed to read a batch for all ranks: no list of "
      "lengths");
}

TEST(Dispatch, LoopsMayBeLeftEarlyAndNested) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.cpu = true,
         .data_loader = {.dispatch_batches = true},
         .process_group = group});
    auto [train, eval] = accelerator.prepare(
        DataLoader(numbers(40), {.batch_size = 2, .num_workers = 1}),
        DataLoader(numbers(6), {.batch_size = 2}));
    for (int epoch = 0; epoch < 3; ++epoch) {
      int num_batches = 0;
      for (auto& batch : train) {
        EXPECT_EQ(
            batch[0][0].item<int64_t>(), num_batches * 4 + 2 * group.rank());
        int64_t num_evaluated = 0;
        for (auto& inner : eval) {
          num_evaluated += accelerator.gather_for_metrics(inner[0]).size(0);
        }
        EXPECT_EQ(num_evaluated, 6);
        if (++num_batches == 4) {
          break;
        }
      }
    }
  });
}

TEST(Dispatch, RejectsBatchesThatCannotBeSent) {
  struct Opaque {
    void* pointer = nullptr;
  };
  EXPECT_THAT(
      [] {
        run_ranks(2, [](ProcessGroup group) {
          Accelerator accelerator({.cpu = true, .process_group = group});
          auto loader = accelerator.prepare(DataLoader(
              std::vector<int64_t>{1, 2},
              {.dispatch_batches = true},
              [](const std::vector<int64_t>&) { return Opaque{}; }));
          loader.begin();
        });
      },
      ::testing::ThrowsMessage<Error>(
          HasSubstr("does not support batches of this type")));
}

TEST(Shard, RejectsDatasetsOfDifferentSizes) {
  EXPECT_THAT(
      [] {
        run_ranks(2, [](ProcessGroup group) {
          Accelerator accelerator({.cpu = true, .process_group = group});
          accelerator.prepare(DataLoader(numbers(5 + group.rank())));
        });
      },
      ::testing::ThrowsMessage<MismatchError>(
          HasSubstr("The dataset has 6 samples on rank 1 but 5 on rank 0")));
}

// --- metrics ----------------------------------------------------------------

std::string metrics_of_one_epoch(const AcceleratorOptions& given) {
  auto options = given;
  options.cpu = true;
  std::string text;
  for (const bool dispatch : {false, true}) {
    Accelerator accelerator(options);
    int64_t num_losses = 0;
    auto loader = accelerator.prepare(DataLoader(
        numbers(13), {.batch_size = 2, .dispatch_batches = dispatch}));
    for (auto& batch : loader) {
      std::vector<std::string> names;
      std::vector<std::pair<std::string, double>> pairs;
      for (const int64_t id : to_vector(batch[0])) {
        names.push_back("n" + std::to_string(id));
        pairs.emplace_back(names.back(), static_cast<double>(id) / 2);
      }
      const auto all_names = accelerator.gather_for_metrics(names);
      const auto all_pairs = accelerator.gather_for_metrics(pairs);
      const auto tree =
          accelerator.gather_for_metrics(std::map<std::string, torch::Tensor>{
              {"ids", batch[0]}, {"loss", torch::tensor(1.5)}});
      EXPECT_EQ(tree.at("loss").size(0), accelerator.num_processes());
      // A loss of the batch that represents each of its samples.
      num_losses += accelerator.gather_for_metrics(torch::ones(2)).size(0);
      // Rows that are not samples count unless the whole batch is a repeat.
      const int64_t num_counted = (tree.at("ids").size(0) + 1) / 2;
      EXPECT_EQ(
          accelerator.gather_for_metrics(torch::ones(3)).size(0),
          3 * num_counted);
      EXPECT_EQ(tree.at("ids").size(0), static_cast<int64_t>(all_names.size()));
      for (size_t i = 0; i < all_names.size(); ++i) {
        EXPECT_EQ(
            all_names[i],
            "n" + std::to_string(
                      tree.at("ids")[static_cast<int64_t>(i)].item<int64_t>()));
        EXPECT_EQ(all_pairs[i].first, all_names[i]);
        text += all_names[i] + " ";
      }
    }
    EXPECT_EQ(num_losses, 13);
    // Outside of a loop nothing is dropped.
    EXPECT_EQ(
        accelerator.gather_for_metrics(torch::zeros(2)).size(0),
        2 * accelerator.num_processes());
  }
  return text;
}
const RankBodyRegistration kMetrics("metrics", metrics_of_one_epoch);

TEST(GatherForMetrics, TreesAndObjectsComeOnceAsThreadsAndAsProcesses) {
  std::string expected;
  for (int mode = 0; mode < 2; ++mode) {
    for (int id = 0; id < 13; ++id) {
      expected += "n" + std::to_string(id) + " ";
    }
  }
  for (const auto& [kind, ranks] :
       {std::pair{RankKind::kThreads, 1},
        std::pair{RankKind::kThreads, 3},
        std::pair{RankKind::kProcesses, 2}}) {
    for (const auto& text : run_body(kind, ranks, "metrics")) {
      EXPECT_EQ(text, expected) << kind << ranks;
    }
  }
}

TEST(GatherForMetrics, OtherObjectsAreSentWithCustomFunctions) {
  struct Opaque {
    std::shared_ptr<int> value;
  };
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    const std::vector<Opaque> own = {{std::make_shared<int>(group.rank())}};
    const auto all = accelerator.gather_for_metrics(
        own,
        [](const Opaque& o) { return std::to_string(*o.value); },
        [](const std::string& text) {
          return Opaque{std::make_shared<int>(std::stoi(text))};
        });
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(*all[1].value, 1);
  });
}

// --- resuming ---------------------------------------------------------------

TEST(Resume, DispatchedLoopsResumeWithAnyNumberOfRanks) {
  StateDict saved;
  Indices before;
  const auto make_loader = [] {
    return DataLoader(
        numbers(29),
        {.batch_size = 2,
         .shuffle = true,
         .seed = 3,
         .dispatch_batches = true});
  };
  run_ranks(3, [&](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    auto loader = accelerator.prepare(make_loader());
    int num_batches = 0;
    for (auto& batch : loader) {
      const auto real = to_vector(accelerator.gather_for_metrics(batch[0]));
      if (group.rank() == 0) {
        before.insert(before.end(), real.begin(), real.end());
      }
      if (++num_batches == 2) {
        if (group.rank() == 0) {
          saved = loader.state_dict();
        }
        break;
      }
    }
  });
  for (const int ranks : {1, 2, 3, 4}) {
    Epoch epoch;
    epoch.gathered.resize(static_cast<size_t>(ranks));
    epoch.handed_out.resize(static_cast<size_t>(ranks));
    run_ranks(ranks, [&](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      auto loader = accelerator.prepare(make_loader());
      loader.load_state_dict(saved);
      run_epoch(accelerator, loader, true, epoch);
    });
    auto all = before;
    all.insert(all.end(), epoch.gathered[0].begin(), epoch.gathered[0].end());
    EXPECT_EQ(all, RandomSampler(29).order(3, 0)) << ranks << " ranks";
  }
}

TEST(Resume, PartsOfASourceResumeAfterTheEndOfTheShortest) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    const auto run = [&](const StateDict* state, size_t max_batches) {
      auto loader = accelerator.prepare(DataLoader(
          Counter{.size = 40},
          {.batch_size = 2,
           .num_workers = 2,
           .iterable_sharding = IterableSharding::kSource}));
      if (state != nullptr) {
        loader.load_state_dict(*state);
      }
      std::vector<Indices> batches;
      StateDict reached;
      for (auto& batch : loader) {
        batches.push_back(to_vector(batch));
        reached = loader.state_dict();
        if (batches.size() == max_batches) {
          break;
        }
      }
      return std::pair(batches, reached);
    };
    const auto whole = run(nullptr, 1000).first;
    for (size_t stop = 1; stop < whole.size(); ++stop) {
      const auto [before, state] = run(nullptr, stop);
      auto all = before;
      for (auto& batch : run(&state, 1000).first) {
        all.push_back(batch);
      }
      EXPECT_EQ(all, whole) << "stopped after " << stop;
    }
  });
}

} // namespace
} // namespace accelerate
