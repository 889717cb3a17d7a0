// SPDX-License-Identifier: Apache-2.0
#include "training/data/dispatch_chain.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "accelerate/error.h"

namespace accelerate::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// What rank `rank` receives in round `turn`: of any length, once empty.
std::string text_of(int rank, int64_t turn) {
  return std::string(static_cast<size_t>(turn * rank), 'x');
}

DispatchedBatch batch_of(int rank, int64_t turn) {
  DispatchedBatch batch;
  batch.facts = {.num_samples = turn + rank, .num_real = turn};
  if (rank > 0) {
    const std::string text = text_of(rank, turn);
    batch.message = make_message(static_cast<int64_t>(text.size()));
    std::copy(text.begin(), text.end(), content_of(batch.message).begin());
  }
  return batch;
}

/// The course of an epoch.
struct Script {
  int64_t num_ahead = 0;
  /// Rounds per rank; rank 0 has the most.
  std::vector<int64_t> num_turns = {};
  bool fails = false;
  /// All ranks leave after this many.
  int64_t leaves_after = 1000;
};

/// Rank 0's source of rounds.
struct Reader {
  const Script& script;
  int64_t num_read = 0;

  void read(DispatchSender& sender) {
    const int64_t turn = num_read++;
    if (turn == script.num_turns[0]) {
      script.fails ? sender.fail("[Test] the disk is gone") : sender.end();
      return;
    }
    std::vector<DispatchedBatch> batches;
    for (size_t rank = 0; rank < script.num_turns.size(); ++rank) {
      batches.push_back(
          turn < script.num_turns[rank] ? batch_of(static_cast<int>(rank), turn)
                                        : DispatchedBatch{});
    }
    sender.give(std::move(batches));
  }
};

void expect_facts(
    const BatchFacts& facts,
    int rank,
    int64_t turn,
    const Script& script) {
  const int64_t num_turns = script.num_turns[static_cast<size_t>(rank)];
  const bool hears_of_it = script.fails && num_turns == script.num_turns[0];
  EXPECT_EQ(facts.num_samples, turn + rank);
  EXPECT_EQ(facts.num_real, turn);
  EXPECT_EQ(facts.is_last, turn + 1 == num_turns && !hears_of_it);
}

int64_t send_all(DispatchSender& sender, const Script& script) {
  Reader reader{script};
  int64_t turn = 0;
  while (turn < script.leaves_after) {
    while (sender.wants_turn()) {
      reader.read(sender);
    }
    EXPECT_LE(
        reader.num_read, turn + 1 + std::max<int64_t>(1, 2 * script.num_ahead));
    const auto facts = sender.next();
    if (!facts) {
      break;
    }
    expect_facts(*facts, 0, turn++, script);
  }
  return turn;
}

int64_t
receive_all(DispatchReceiver& receiver, int rank, const Script& script) {
  int64_t turn = 0;
  while (turn < script.leaves_after) {
    const auto batch = receiver.next();
    if (!batch) {
      break;
    }
    const auto content = content_of(batch->message);
    EXPECT_EQ(std::string(content.begin(), content.end()), text_of(rank, turn));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(content.data()) % 16, 0U);
    expect_facts(batch->facts, rank, turn++, script);
  }
  return turn;
}

/// Runs the script on all its ranks; returns the errors of each.
std::vector<std::string> run(const Script& script) {
  std::vector<std::string> errors(script.num_turns.size());
  run_ranks(static_cast<int>(errors.size()), [&](ProcessGroup group) {
    const auto rank = static_cast<size_t>(group.rank());
    int64_t num_turns = 0;
    if (rank == 0) {
      DispatchSender sender(group, script.num_ahead);
      num_turns = send_all(sender, script);
    } else {
      DispatchReceiver receiver(group, script.num_ahead);
      try {
        num_turns = receive_all(receiver, group.rank(), script);
      } catch (const DataError& error) {
        errors[rank] = error.what();
        num_turns = script.num_turns[rank];
        EXPECT_FALSE(receiver.next().has_value());
      }
    }
    EXPECT_EQ(num_turns, std::min(script.num_turns[rank], script.leaves_after));
    // Nothing is left over: the group is still usable.
    group.barrier();
  });
  return errors;
}

TEST(DispatchChain, GivesEachRankItsBatchesUpToItsEnd) {
  for (const int64_t num_ahead : {0, 1, 2, 3}) {
    for (const int64_t most : {0, 1, 2, 7}) {
      for (const int64_t least : {int64_t{0}, most / 2, most}) {
        const auto errors =
            run({.num_ahead = num_ahead, .num_turns = {most, most, least}});
        EXPECT_THAT(errors[1] + errors[2], IsEmpty());
      }
    }
  }
}

TEST(DispatchChain, AFailureTakesThePlaceOfTheBatch) {
  for (const int64_t num_ahead : {0, 2}) {
    for (const int64_t most : {0, 1, 5}) {
      const auto errors = run(
          {.num_ahead = num_ahead,
           .num_turns = {most, most, most, most / 2},
           .fails = true});
      EXPECT_EQ(errors[1], "[Test] the disk is gone");
      EXPECT_EQ(errors[2], "[Test] the disk is gone");
      // A rank that had already ended does not receive it.
      EXPECT_EQ(errors[3].empty(), most > 0);
    }
  }
}

TEST(DispatchChain, ALoopMayBeLeftInAnyRound) {
  for (const int64_t num_ahead : {0, 1, 2}) {
    for (const int64_t turn : {0, 1, 3, 6}) {
      run({.num_ahead = num_ahead, .num_turns = {7, 7}, .leaves_after = turn});
    }
  }
}

TEST(DispatchChain, RankZeroRunsAheadOfOneThatHasNotBegun) {
  const Script script{.num_turns = {3, 3}, .leaves_after = 2};
  std::promise<void> is_ahead;
  auto ahead = is_ahead.get_future();
  run_ranks(2, [&](ProcessGroup group) {
    if (group.rank() == 0) {
      DispatchSender sender(group, script.num_ahead);
      send_all(sender, script);
      is_ahead.set_value();
    } else {
      DispatchReceiver receiver(group, script.num_ahead);
      ASSERT_EQ(
          ahead.wait_for(std::chrono::seconds(60)), std::future_status::ready);
      receive_all(receiver, 1, script);
    }
  });
}

TEST(DispatchChain, ASingleRankGetsTheSame) {
  const Script script{.num_ahead = 2, .num_turns = {5}};
  DispatchSender sender(ProcessGroup(), script.num_ahead);
  EXPECT_EQ(send_all(sender, script), 5);
}

TEST(DispatchChain, ReportsBadUseInOneLine) {
  DispatchSender sender(ProcessGroup(), 0);
  EXPECT_THAT(
      [&] { sender.next(); },
      ThrowsMessage<UsageError>(HasSubstr("was called too early")));
  EXPECT_THAT(
      [&] { sender.give({}); },
      ThrowsMessage<UsageError>(HasSubstr("Got 0 batches for")));
}

} // namespace
} // namespace accelerate::detail
