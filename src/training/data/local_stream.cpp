// SPDX-License-Identifier: Apache-2.0
// Streams of ranks that read for themselves.
#include <ATen/ATen.h>

#include <numeric>

#include "core/base/str.h"
#include "training/data/batch_stream.h"

namespace accelerate::detail {

std::optional<Item> Peeked::take() {
  if (error) {
    std::rethrow_exception(std::exchange(error, nullptr));
  }
  return std::exchange(item, std::nullopt);
}

Peeked peek(BatchStream& stream) {
  Peeked peeked;
  try {
    peeked.item = stream.next();
  } catch (...) {
    peeked.error = std::current_exception();
  }
  return peeked;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

namespace {

/// Takes batches from several queues in turn, and skips queues that have ended.
class TurnStream final : public BatchStream {
 public:
  explicit TurnStream(std::vector<std::unique_ptr<RoundQueue>> queues)
      : queues_(std::move(queues)) {}

  std::optional<Item> next() override {
    while (!queues_.empty()) {
      turn_ %= queues_.size();
      Round round = queues_[turn_]->next();
      if (!round.empty()) {
        ++turn_;
        return std::move(round[0]);
      }
      queues_.erase(queues_.begin() + static_cast<std::ptrdiff_t>(turn_));
    }
    return std::nullopt;
  }

 private:
  std::vector<std::unique_ptr<RoundQueue>> queues_;
  size_t turn_ = 0;
};

/// Reads one batch ahead to detect the last one.
class LastMarkingStream final : public BatchStream {
 public:
  explicit LastMarkingStream(std::unique_ptr<BatchStream> inner)
      : inner_(std::move(inner)) {}

  std::optional<Item> next() override {
    if (!ahead_) {
      ahead_ = peek(*inner_);
    }
    auto item = ahead_->take();
    if (item) {
      ahead_ = peek(*inner_);
      item->facts.is_last = ahead_->is_end();
    }
    return item;
  }

 private:
  std::unique_ptr<BatchStream> inner_;
  std::optional<Peeked> ahead_;
};

/// Makes ranks with different numbers of batches end together: before a batch
/// is returned, ranks exchange whether each of them has another one.
class AgreedStream final : public BatchStream {
 public:
  using MakeStream = std::function<std::unique_ptr<BatchStream>()>;

  /// Exceptions of `make_inner` and of skipping batches are thrown with the
  /// first batch, because the other ranks wait for this rank there.
  AgreedStream(const EpochPlan& plan, const MakeStream& make_inner)
      : plan_(plan) {
    try {
      inner_ = make_inner();
      skip(plan.num_done);
    } catch (...) {
      ahead_.error = std::current_exception();
    }
  }

  std::optional<Item> next() override {
    if (!is_begun_) {
      is_begun_ = true;
      look_ahead();
    }
    if (!error_.empty()) {
      ahead_.take();
      throw DataError(error_);
    }
    if (!goes_on_) {
      return std::nullopt;
    }
    Item item = ahead_.item ? *ahead_.take() : repeated();
    look_ahead();
    item.facts.is_last = !goes_on_ && error_.empty();
    return item;
  }

 private:
  enum Status : int64_t { kNone, kBatch, kFailed };

  /// Skips batches. Repeats still come from the first batch.
  void skip(int64_t num_batches) {
    for (int64_t i = 0; i < num_batches; ++i) {
      const auto item = inner_->next();
      if (!item) {
        break;
      }
      keep_if_first(*item);
    }
  }

  void look_ahead() {
    if (!ahead_.error) {
      ahead_ = peek(*inner_);
    }
    if (ahead_.item) {
      keep_if_first(*ahead_.item);
    }
    const int64_t own[2] = {
        ahead_.error ? kFailed : (ahead_.item ? kBatch : kNone),
        first_ ? 1 : 0};
    const auto mine = at::tensor({own[0] * 2 + own[1]}, at::kLong);
    const auto all = plan_.context.group.all_gather(mine).contiguous();
    const auto* words = all.data_ptr<int64_t>();
    const bool needs_all = plan_.options.drop_last;
    goes_on_ = needs_all;
    int empty = -1;
    int failed = -1;
    for (int rank = 0; rank < plan_.context.shard.world_size; ++rank) {
      const int64_t status = words[rank] / 2;
      failed = status == kFailed && failed < 0 ? rank : failed;
      goes_on_ = needs_all ? goes_on_ && status == kBatch
                           : goes_on_ || status == kBatch;
      empty = words[rank] % 2 == 0 ? rank : empty;
    }
    if (failed >= 0) {
      const auto causes = plan_.context.group.all_gather_bytes(
          ahead_.error ? message_of(ahead_.error) : "");
      error_ = str_cat(
          "[DataLoader] Rank ",
          failed,
          " failed to read its next batch: ",
          causes[static_cast<size_t>(failed)]);
    } else if (goes_on_ && empty >= 0) {
      error_ = str_cat(
          "[DataLoader] The shard of rank ",
          empty,
          " is empty, so even_batches has no sample to repeat. Use fewer ranks "
          "and workers, or IterableSharding::kElement");
    }
  }

  void keep_if_first(const Item& item) {
    if (!first_) {
      first_ = plan_.options.drop_last ? item.batch
                                       : plan_.source->clone(item.batch);
      first_facts_ = item.facts;
    }
  }

  Item repeated() const {
    Item item{.batch = plan_.source->clone(first_), .message = {}, .facts = {}};
    item.facts = first_facts_;
    item.facts.num_real = 0;
    return item;
  }

  EpochPlan plan_;
  std::unique_ptr<BatchStream> inner_;
  Peeked ahead_;
  bool is_begun_ = false;
  bool goes_on_ = false;
  std::string error_;
  Any first_;
  BatchFacts first_facts_;
};

std::unique_ptr<BatchStream> make_slice_stream(
    const EpochPlan& plan,
    WorkerPool& pool,
    const RoundQueue::Finish& finish) {
  const int64_t per_rank = std::max(plan.options.num_workers, 1);
  const int64_t count = per_rank * plan.context.shard.world_size;
  const auto open = [&] {
    std::vector<std::unique_ptr<RoundQueue>> queues;
    for (int64_t i = 0; i < per_rank; ++i) {
      queues.push_back(make_queue(
          plan,
          pool,
          make_slice_rounds(
              plan, plan.context.shard.rank * per_rank + i, count),
          finish));
    }
    return std::make_unique<TurnStream>(std::move(queues));
  };
  const bool agrees = plan.context.shard.world_size > 1 &&
                      (plan.options.even_batches || plan.options.drop_last);
  if (agrees) {
    return std::make_unique<AgreedStream>(plan, open);
  }
  auto stream = open();
  for (int64_t i = 0; i < plan.num_done; ++i) {
    stream->next();
  }
  return std::make_unique<LastMarkingStream>(std::move(stream));
}

} // namespace

std::unique_ptr<BatchStream> make_local_stream(
    const EpochPlan& plan,
    WorkerPool& pool) {
  const auto finish = [plan](Item& item, size_t) {
    pin_for_device(plan, item);
  };
  if (plan.shards_itself()) {
    if (auto* recorder = StepRecorder::get()) {
      recorder->note_obstacle(
          "Each process reads its own part of an iterable source "
          "(IterableSharding::kSource), so a single process has different "
          "batches. Use kElement to compare",
          /*only_excuses=*/false);
    }
    return make_slice_stream(plan, pool, finish);
  }
  std::vector<int> ranks = {plan.context.shard.rank};
  if (plan.context.is_merged) {
    ranks.resize(static_cast<size_t>(plan.context.shard.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::vector<std::unique_ptr<RoundQueue>> queues;
  queues.push_back(make_queue(
      plan,
      pool,
      plan.is_stream() ? make_stream_rounds(plan, ranks)
                       : make_map_rounds(plan, ranks),
      finish));
  const bool knows_last = queues[0]->knows_last();
  auto stream = std::make_unique<TurnStream>(std::move(queues));
  if (knows_last) {
    return stream;
  }
  return std::make_unique<LastMarkingStream>(std::move(stream));
}

} // namespace accelerate::detail
