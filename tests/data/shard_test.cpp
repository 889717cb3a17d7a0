// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "accelerate/data/packed_batches.h"
#include "accelerate/data/samplers.h"
#include "accelerate/error.h"
#include "core/base/stable_hash.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Indices = std::vector<int64_t>;
using Batches = std::vector<Indices>;
using Settings = std::vector<int64_t>;

const std::string kReference = TEST_REFERENCE_DIR "/shards.txt";

Indices numbers(int64_t size) {
  return SequentialSampler(size).order(0, 0);
}

std::string join(const auto& parts, char separator, const auto& text_of) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : std::string(1, separator)) + text_of(parts[i]);
  }
  return text;
}
std::string to_text(const Indices& indices) {
  return join(indices, ',', [](int64_t i) { return std::to_string(i); });
}
std::string to_text(const std::vector<Batches>& ranks) {
  return join(ranks, '|', [](const Batches& batches) {
    return join(batches, ';', [](const Indices& b) { return to_text(b); });
  });
}

Batches batches_of(const BatchShard& shard) {
  Batches batches;
  for (int64_t i = 0; i < shard.size(); ++i) {
    batches.push_back(shard.batch(i).indices);
  }
  return batches;
}

std::string for_ranks(
    int64_t world_size,
    const std::function<Batches(ShardOptions)>& batches_of_rank) {
  std::vector<Batches> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(batches_of_rank({rank, static_cast<int>(world_size)}));
  }
  return to_text(ranks);
}

BatchOptions fixed_options(const Settings& s) {
  return {
      .batch_size = s[0],
      .drop_last = s[2] != 0,
      .even_batches = s[3] != 0,
      .split_batches = s[4] != 0};
}

std::string fixed(int64_t size, const Settings& s) {
  return for_ranks(s[1], [&](ShardOptions shard) {
    return batches_of(BatchShard(numbers(size), fixed_options(s), shard));
  });
}

// As `VaryingBatches` of the generator.
Batches varying_batches(int64_t num_batches) {
  Batches batches;
  int64_t next = 0;
  for (int64_t k = 0; k < num_batches; ++k) {
    auto& batch =
        batches.emplace_back(static_cast<size_t>((7 * k + 2) % 5 + 1));
    for (auto& index : batch) {
      index = next++;
    }
  }
  return batches;
}

std::string varying(int64_t num_batches, const Settings& s) {
  return for_ranks(s[0], [&](ShardOptions shard) {
    return batches_of(BatchShard(
        varying_batches(num_batches),
        {.drop_last = s[1] != 0, .even_batches = s[2] != 0},
        shard));
  });
}

// What a loader does with a stream of `size` elements 0, 1, 2, ...
Batches read_stream(int64_t size, const IterableShard& shard) {
  Batches batches;
  Indices batch;
  std::set<int64_t> kept;
  for (int64_t position = 0; position < size; ++position) {
    if (shard.is_repeated(position)) {
      kept.insert(position);
    }
    if (shard.is_mine(position)) {
      batch.push_back(position);
    }
    if (shard.ends_round(position)) {
      batches.push_back(std::exchange(batch, {}));
    }
  }
  const auto last = shard.last_batch(size);
  if (!last.indices.empty()) {
    // The real ones were just read, the others were kept.
    EXPECT_EQ(batch.size(), static_cast<size_t>(last.num_real));
    EXPECT_TRUE(std::equal(batch.begin(), batch.end(), last.indices.begin()));
    for (size_t i = batch.size(); i < last.indices.size(); ++i) {
      EXPECT_EQ(kept.count(last.indices[i]), 1U);
    }
    batches.push_back(last.indices);
  }
  EXPECT_EQ(shard.size(size), static_cast<int64_t>(batches.size()));
  return batches;
}

std::string stream(int64_t size, const Settings& s) {
  return for_ranks(s[1], [&](ShardOptions shard) {
    return read_stream(
        size,
        IterableShard(
            {.batch_size = s[0],
             .drop_last = s[2] != 0,
             .split_batches = s[3] != 0},
            shard));
  });
}

std::string order_text(const Sampler& sampler, const auto& seed_and_epoch) {
  const auto order = sampler.order(seed_and_epoch.first, seed_and_epoch.second);
  EXPECT_EQ(sampler.size(), static_cast<int64_t>(order.size()));
  return to_text(order);
}

// Kinds of lines: how many settings they have, and the text of a size.
struct Kind {
  size_t num_settings;
  std::function<std::string(int64_t size, const Settings&)> text;
};
const std::map<std::string, Kind> kGrid = {
    {"fixed", {5, fixed}},
    {"varying", {3, varying}},
    {"stream", {4, stream}},
};

std::string low_half(const std::string& text) {
  char digits[9];
  std::snprintf(
      digits,
      sizeof(digits),
      "%08x",
      static_cast<unsigned>(stable_hash(text) & 0xFFFFFFFF));
  return digits;
}

Settings read_settings(std::istream& line, size_t count) {
  Settings settings(count);
  for (auto& setting : settings) {
    line >> setting;
  }
  return settings;
}

void each_line(const std::function<void(std::string, std::istream&)>& see) {
  std::ifstream file(kReference);
  ASSERT_TRUE(file) << kReference;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    see(kind, line);
  }
}

TEST(BatchShard, EqualsHuggingFacesTables) {
  int num_tables = 0;
  each_line([&](const std::string& kind, std::istream& line) {
    if (kind == "table") {
      const auto settings = read_settings(line, 6);
      std::string expected;
      line >> expected;
      EXPECT_EQ(
          fixed(settings[0], Settings(settings.begin() + 1, settings.end())),
          expected);
      ++num_tables;
    }
  });
  EXPECT_EQ(num_tables, 20);
}

TEST(BatchShard, EqualsHuggingFaceInEverySettingOfTheGrid) {
  std::map<std::string, int> num_tables;
  each_line([&](const std::string& kind, std::istream& line) {
    const auto found = kGrid.find(kind);
    if (found == kGrid.end()) {
      return;
    }
    const auto settings = read_settings(line, found->second.num_settings);
    std::string expected;
    for (int64_t size = 0; line >> expected; ++size) {
      const auto text = found->second.text(size, settings);
      ASSERT_EQ(low_half(text), expected)
          << kind << " " << to_text(settings) << " of " << size << ": " << text;
      ++num_tables[kind];
    }
  });
  EXPECT_EQ(num_tables["fixed"], (35 + 14) * 4 * 51);
  EXPECT_EQ(num_tables["stream"], (35 + 14) * 2 * 51);
  EXPECT_EQ(num_tables["varying"], 5 * 4 * 51);
}

TEST(Sampler, EqualsPyTorchsOrders) {
  std::map<std::string, int> num_orders;
  each_line([&](const std::string& kind, std::istream& line) {
    std::pair<uint64_t, int64_t> when;
    std::string text;
    if (kind == "random") {
      line >> when.first >> when.second;
      text = order_text(RandomSampler(read_settings(line, 1)[0]), when);
    } else if (kind == "weighted") {
      line >> when.first >> when.second;
      std::vector<double> weights(100);
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<double>(i % 7);
      }
      const bool replacement = read_settings(line, 1)[0] != 0;
      text = order_text(WeightedRandomSampler(weights, 60, replacement), when);
    } else if (kind == "grouped") {
      line >> when.first >> when.second;
      const auto settings = read_settings(line, 2);
      auto lengths = numbers(settings[0]);
      for (auto& length : lengths) {
        length = length * length % 31;
      }
      text = order_text(LengthGroupedSampler(lengths, settings[1]), when);
    } else {
      return;
    }
    std::string expected;
    line >> expected;
    EXPECT_EQ(low_half(text), expected) << kind << ": " << text.substr(0, 80);
    ++num_orders[kind];
  });
  EXPECT_EQ(num_orders["random"], 20);
  EXPECT_EQ(num_orders["weighted"], 10);
  EXPECT_EQ(num_orders["grouped"], 30);
}

TEST(ShardOracle, StillWritesTheReferenceFile) {
  const char* python = std::getenv("ACCELERATE_ORACLE_PYTHON");
  if (python == nullptr) {
    GTEST_SKIP() << "ACCELERATE_ORACLE_PYTHON is not set";
  }
  const auto tool = std::filesystem::path(TEST_REFERENCE_DIR) / ".." / ".." /
                    "tools" / "make_shard_reference.py";
  const auto result = run_process(
      {python, tool.string()},
      {{"OMP_NUM_THREADS", "1"}},
      std::chrono::seconds(240));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out == read_file(kReference))
      << "the oracle now gives another file than " << kReference;
}

// As torch.randperm(5, generator=torch.Generator().manual_seed(42)).
TEST(Sampler, DependsOnSeedAndEpochAlone) {
  const RandomSampler sampler(5);
  EXPECT_EQ(sampler.order(42, 0), (Indices{2, 4, 3, 0, 1}));
  EXPECT_EQ(sampler.order(41, 1), sampler.order(42, 0));
  EXPECT_NE(RandomSampler(100).order(7, 0), RandomSampler(100).order(7, 1));
  EXPECT_THAT(RandomSampler(0).order(1, 1), IsEmpty());
  EXPECT_THAT(LengthGroupedSampler({}, 4).order(1, 1), IsEmpty());
  EXPECT_EQ(SequentialSampler(3).order(1, 1), (Indices{0, 1, 2}));
}

TEST(Sampler, GroupsSamplesOfSimilarLengthWithTheLongestFirst) {
  auto lengths = numbers(400);
  const LengthGroupedSampler sampler(lengths, 4, 10);
  const auto order = sampler.order(3, 0);
  EXPECT_EQ(order[0], 399);
  for (size_t i = 1; i < order.size(); ++i) { // length of i is i
    // The first of a mega-batch may have been swapped for the longest.
    EXPECT_TRUE(order[i - 1] > order[i] || i % 40 < 2) << i;
  }
  EXPECT_EQ(std::set(order.begin(), order.end()).size(), 400U);
}

TEST(TokenBudgetBatchSampler, AddsSamplesWhileTheBudgetHolds) {
  const TokenBudgetBatchSampler sampler(
      std::make_shared<SequentialSampler>(6), {3, 3, 4, 1, 1, 12}, 12);
  EXPECT_EQ(sampler.batches(0, 0), (Batches{{0, 1, 2}, {3, 4}, {5}}));
}

TEST(PackedBatchSampler, LimitsTokensAndSequencesOfARow) {
  const auto batches = [](std::vector<int64_t> lengths, int64_t num_sequences) {
    const auto size = static_cast<int64_t>(lengths.size());
    return PackedBatchSampler(
               std::make_shared<SequentialSampler>(size),
               std::move(lengths),
               {.num_tokens = 12,
                .num_sequences = num_sequences,
                .max_length = 6})
        .batches(0, 0);
  };
  EXPECT_EQ(batches({5, 6, 1, 2, 6, 6}, 6), (Batches{{0, 1, 2}, {3, 4}, {5}}));
  // Four samples of one token leave eight, which two more sequences fill.
  EXPECT_EQ(
      batches({1, 1, 1, 1, 1, 1, 1}, 6), (Batches{{0, 1, 2, 3}, {4, 5, 6}}));
  // With a sixth token, one sequence is enough as padding.
  EXPECT_EQ(batches({1, 1, 1, 3, 1, 1}, 6), (Batches{{0, 1, 2, 3, 4}, {5}}));
}

TEST(Sampler, RejectsInvalidWeights) {
  using Weighted = WeightedRandomSampler;
  EXPECT_THAT(
      [] {
        Weighted({1, 2}, 0);
      },
      ThrowsMessage<UsageError>(HasSubstr("num_samples is 0")));
  EXPECT_THAT(
      [] {
        Weighted({1, -2}, 1);
      },
      ThrowsMessage<UsageError>(HasSubstr("weight 1 is -2")));
  EXPECT_THAT(
      [] {
        Weighted({0, 0}, 1);
      },
      ThrowsMessage<UsageError>(HasSubstr("Got 0 positive weights")));
  EXPECT_THAT(
      [] {
        Weighted({1, 0, 1}, 3, false);
      },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("Got 2 positive weights"), HasSubstr("replacement"))));
  EXPECT_THAT(
      [] { RandomSampler(-1); }, ThrowsMessage<UsageError>(HasSubstr("-1")));
  EXPECT_THAT(
      [] { LengthGroupedSampler({1}, 0); },
      ThrowsMessage<UsageError>(HasSubstr("batch_size is 0")));
  const auto sequence = std::make_shared<SequentialSampler>(3);
  EXPECT_THAT(
      [&] {
        TokenBudgetBatchSampler(sequence, {1, 9}, 8);
      },
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has length 9")));
  EXPECT_THAT(
      [&] {
        TokenBudgetBatchSampler(sequence, {1, 1}, 8).batches(0, 0);
      },
      ThrowsMessage<UsageError>(HasSubstr("returned index 2")));
}

TEST(PackedBatchSampler, RefusesWhatDoesNotFit) {
  const auto sequence = std::make_shared<SequentialSampler>(2);
  const auto make = [&](std::vector<int64_t> lengths,
                        const PackedBatchOptions& options) {
    return PackedBatchSampler(sequence, std::move(lengths), options);
  };
  const PackedBatchOptions options{
      .num_tokens = 12, .num_sequences = 3, .max_length = 6};
  EXPECT_THAT(
      [&] {
        make({1, 7}, options);
      },
      ThrowsMessage<UsageError>(HasSubstr("Sample 1 has length 7")));
  EXPECT_THAT(
      [&] { make({0}, options); },
      ThrowsMessage<UsageError>(HasSubstr("Sample 0 has length 0")));
  EXPECT_THAT(
      [&] {
        make({1}, {.num_tokens = 12, .num_sequences = 2, .max_length = 6});
      },
      ThrowsMessage<UsageError>(HasSubstr("num_sequences 2")));
  EXPECT_THAT(
      [&] {
        make({1}, {.num_tokens = 12, .num_sequences = 9, .max_length = 13});
      },
      ThrowsMessage<UsageError>(HasSubstr("max_length 13")));
  EXPECT_THAT(
      [&] { make({1}, options).batches(0, 0); },
      ThrowsMessage<UsageError>(HasSubstr("returned index 1")));
}

TEST(BatchShard, RejectsInconsistentSettings) {
  EXPECT_THAT(
      [] { BatchShard(numbers(9), {.batch_size = 0}, {}); },
      ThrowsMessage<UsageError>(HasSubstr("batch_size is 0")));
  EXPECT_THAT(
      [] {
        BatchShard(
            numbers(9), {.batch_size = 3, .split_batches = true}, {0, 2});
      },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("batch_size 3 must be a multiple of 2"),
          HasSubstr("ranks"))));
  EXPECT_THAT(
      [] {
        IterableShard({.batch_size = 1, .split_batches = true}, {0, 2});
      },
      ThrowsMessage<UsageError>(
          HasSubstr("batch_size 1 must be a multiple of 2")));
  EXPECT_THAT(
      [] {
        BatchShard(numbers(9), {}, {2, 2});
      },
      ThrowsMessage<UsageError>(HasSubstr("rank is 2, expected 0 to 1")));
  EXPECT_THAT(
      [] { BatchShard(numbers(9), {}, {}, 10); },
      ThrowsMessage<UsageError>(HasSubstr("at position 10")));
  EXPECT_THAT(
      [] { IterableShard({}, {}, -1); },
      ThrowsMessage<UsageError>(HasSubstr("num_done is -1")));
  EXPECT_THAT(
      [] { BatchShard(numbers(4), {}, {}).batch(4); },
      ThrowsMessage<UsageError>(
          HasSubstr("batch index is 4, expected 0 to 3")));
  EXPECT_THAT(
      [] { BatchShard(Batches{{1}}, {.split_batches = true}, {}); },
      ThrowsMessage<UsageError>(HasSubstr("varying size")));
  EXPECT_THAT(
      [] {
        BatchShard(Batches{{1}, {}}, {}, {});
      },
      ThrowsMessage<UsageError>(HasSubstr("Batch 1 is empty")));
}

struct Resume {
  int64_t size;
  BatchOptions options;
  int world_size;
  int next_world_size;
};

// Real samples, in the order in which all ranks together see them.
Indices real_samples(
    const Resume& run,
    int world_size,
    int64_t num_done,
    int64_t num_rounds = 1 << 20) {
  std::vector<BatchShard> shards;
  for (int rank = 0; rank < world_size; ++rank) {
    shards.emplace_back(
        numbers(run.size),
        run.options,
        ShardOptions{rank, world_size},
        num_done);
  }
  Indices seen;
  for (int64_t i = 0; i < std::min(num_rounds, shards[0].size()); ++i) {
    const auto before = seen.size();
    for (const auto& shard : shards) {
      if (i < shard.size()) {
        const auto batch = shard.batch(i);
        seen.insert(
            seen.end(),
            batch.indices.begin(),
            batch.indices.begin() + batch.num_real);
      }
    }
    EXPECT_EQ(
        shards[0].num_real_of_round(i),
        static_cast<int64_t>(seen.size() - before));
  }
  return seen;
}

TEST(BatchShard, SeesEverySampleOnceWithAnotherNumberOfRanks) {
  for (const auto& [size, batch, even, split] :
       {std::tuple{37, 12, true, false},
        {37, 12, true, true},
        {37, 12, false, true},
        {50, 3, false, false},
        {2, 4, true, false}}) {
    for (const int world_size : {1, 2, 3, 4}) {
      for (const int next : {1, 2, 3, 4}) {
        const Resume run{
            size,
            {.batch_size = batch, .even_batches = even, .split_batches = split},
            world_size,
            next};
        if (split && (batch % world_size != 0 || batch % next != 0)) {
          continue;
        }
        for (int64_t stop = 0; stop * batch <= size + batch; ++stop) {
          auto seen = real_samples(run, world_size, 0, stop);
          const auto rest =
              real_samples(run, next, static_cast<int64_t>(seen.size()));
          seen.insert(seen.end(), rest.begin(), rest.end());
          ASSERT_EQ(seen, numbers(size)) << world_size << " then " << next;
        }
      }
    }
  }
}

TEST(BatchShard, ResumesExactlyWithTheSameNumberOfRanks) {
  for (const bool even : {true, false}) {
    for (int64_t size : {0, 3, 17, 24}) {
      for (int rank = 0; rank < 3; ++rank) {
        const BatchOptions options{.batch_size = 2, .even_batches = even};
        const auto whole =
            batches_of(BatchShard(numbers(size), options, {rank, 3}));
        for (size_t done = 0; done <= whole.size(); ++done) {
          const auto num_done =
              std::min<int64_t>(static_cast<int64_t>(done) * 6, size);
          const BatchShard rest(numbers(size), options, {rank, 3}, num_done);
          EXPECT_EQ(
              batches_of(rest),
              Batches(
                  whole.begin() + static_cast<std::ptrdiff_t>(done),
                  whole.end()));
        }
      }
    }
  }
}

TEST(BatchShard, ResumesAfterBatchesOfVaryingSize) {
  const auto all = varying_batches(7);
  const BatchShard rest(all, {}, {1, 2}, 3);
  // Batches 3 and 4, then 5 and 6.
  EXPECT_EQ(batches_of(rest), (Batches{all[4], all[6]}));
  EXPECT_EQ(
      rest.num_real_of_round(1),
      static_cast<int64_t>(all[5].size() + all[6].size()));
  const BatchShard filled(all, {}, {1, 2}, 4);
  EXPECT_EQ(batches_of(filled), (Batches{all[5], all[0]}));
  EXPECT_EQ(filled.batch(1).num_real, 0);
}

TEST(IterableShard, ResumesWithAnotherNumberOfRanksAndPadsFromTheFront) {
  const IterableShard shard({.batch_size = 2}, {1, 2}, 3);
  EXPECT_EQ(
      read_stream(10, shard),
      (Batches{
          {5, 6},
          {9, 0},
      }));
}

TEST(IterableShard, LeavesTheEndUnevenIfRequested) {
  const BatchOptions options{.batch_size = 2, .even_batches = false};
  EXPECT_EQ(
      read_stream(7, IterableShard(options, {1, 2})), (Batches{{2, 3}, {6}}));
  EXPECT_EQ(read_stream(6, IterableShard(options, {1, 2})), (Batches{{2, 3}}));
}

} // namespace
} // namespace accelerate::testing
