// SPDX-License-Identifier: Apache-2.0
// Makes rounds: chooses, reads and collates samples.
#include <algorithm>

#include "core/base/stable_hash.h"
#include "training/data/batch_stream.h"

namespace accelerate::detail {

BatchOptions EpochPlan::batch_options() const {
  return {
      .batch_size = options.batch_size,
      .drop_last = options.drop_last,
      // A single rank has nothing to even out.
      .even_batches = options.even_batches && context.shard.world_size > 1,
      .split_batches = options.split_batches};
}

int64_t EpochPlan::per_rank() const {
  return options.split_batches ? options.batch_size / context.shard.world_size
                               : options.batch_size;
}

namespace {

class MapRounds final : public RoundMaker {
 public:
  MapRounds(const EpochPlan& plan, const std::vector<int>& ranks)
      : source_(plan.source),
        seed_{plan.seed, plan.epoch},
        is_merged_(plan.context.is_merged) {
    const ShardOptions first{ranks[0], plan.context.shard.world_size};
    const auto& batch_sampler = plan.options.batch_sampler;
    shards_.push_back(
        batch_sampler
            ? BatchShard(
                  batch_sampler->batches(plan.seed, plan.epoch),
                  plan.batch_options(),
                  first,
                  plan.num_done)
            : BatchShard(
                  order_of(plan), plan.batch_options(), first, plan.num_done));
    for (size_t i = 1; i < ranks.size(); ++i) {
      shards_.push_back(shards_[0].for_rank(ranks[i]));
    }
  }

  int64_t num_rounds() const override {
    int64_t most = 0;
    for (const auto& shard : shards_) {
      most = std::max(most, shard.size());
    }
    return most;
  }

  Round make(int64_t index) override {
    Round round;
    if (is_merged_) {
      round.push_back(make_merged(index));
      return round;
    }
    for (const auto& shard : shards_) {
      Item item;
      if (index < shard.size()) {
        const auto batch = shard.batch(index);
        item.batch = source_->read(batch.indices, seed_);
        item.facts = {
            .is_last = index + 1 == shard.size(),
            .num_samples = static_cast<int64_t>(batch.indices.size()),
            .num_real = batch.num_real};
      }
      round.push_back(std::move(item));
    }
    return round;
  }

 private:
  static std::vector<int64_t> order_of(const EpochPlan& plan) {
    if (plan.options.sampler) {
      return noted(plan.options.sampler->order(plan.seed, plan.epoch));
    }
    const int64_t size = plan.source->size();
    return plan.options.shuffle
               ? RandomSampler(size).order(plan.seed, plan.epoch)
               : SequentialSampler(size).order(plan.seed, plan.epoch);
  }

  /// Reports the order of a sampler of user code to `accelerate verify`.
  static std::vector<int64_t> noted(std::vector<int64_t> order) {
    if (auto* recorder = StepRecorder::get()) {
      recorder->note_order(stable_hash(std::string_view(
          reinterpret_cast<const char*>(order.data()),
          order.size() * sizeof(order[0]))));
    }
    return order;
  }

  Item make_merged(int64_t index) const {
    Item item;
    std::vector<int64_t> indices;
    for (const auto& shard : shards_) {
      if (index < shard.size()) {
        const auto batch = shard.batch(index);
        indices.insert(
            indices.end(), batch.indices.begin(), batch.indices.end());
        item.facts.num_real += batch.num_real;
        item.facts.is_last = index + 1 == num_rounds();
      }
    }
    item.batch = source_->read(indices, seed_);
    item.facts.num_samples = static_cast<int64_t>(indices.size());
    return item;
  }

  std::shared_ptr<const BatchSource> source_;
  SampleSeed seed_;
  std::vector<BatchShard> shards_;
  bool is_merged_;
};

class StreamRounds final : public RoundMaker {
 public:
  StreamRounds(
      const EpochPlan& plan,
      std::unique_ptr<ElementStream> stream,
      std::vector<IterableShard> shards,
      const std::vector<int>& ranks,
      int64_t num_done)
      : source_(plan.source),
        stream_(std::move(stream)),
        shards_(std::move(shards)),
        ranks_(ranks),
        per_rank_(plan.per_rank()),
        num_done_(num_done),
        is_merged_(plan.context.is_merged) {}

  int64_t num_rounds() const override { return kUnknown; }

  Round make(int64_t /*index*/) override {
    if (is_over_) {
      return {};
    }
    while (!is_over_ && position_ < num_done_) {
      read_element();
    }
    const int64_t first = position_;
    elements_.clear();
    bool is_full = false;
    while (!is_over_ && !is_full) {
      is_full = read_element() && shards_[0].ends_round(position_ - 1);
    }
    Round round;
    bool has_any = false;
    if (is_merged_) {
      BatchShard::Batch all;
      for (size_t slot = 0; slot < shards_.size(); ++slot) {
        const auto batch = is_full ? full_batch(slot, first)
                                   : shards_[slot].last_batch(position_);
        all.indices.insert(
            all.indices.end(), batch.indices.begin(), batch.indices.end());
        all.num_real += batch.num_real;
      }
      round.push_back(collate(all, first));
      return all.indices.empty() ? Round{} : std::move(round);
    }
    for (size_t slot = 0; slot < shards_.size(); ++slot) {
      round.push_back(collate(
          is_full ? full_batch(slot, first)
                  : shards_[slot].last_batch(position_),
          first));
      has_any = has_any || round.back().is_there();
    }
    return has_any ? std::move(round) : Round{};
  }

 private:
  bool read_element() {
    Any element;
    try {
      element = stream_->next();
    } catch (...) {
      // End the source, because its later elements would be at the wrong
      // position.
      is_over_ = true;
      throw;
    }
    if (!element) {
      is_over_ = true;
      return false;
    }
    if (shards_[0].is_repeated(position_)) {
      kept_.push_back(element);
    }
    if (position_ >= num_done_) {
      const bool is_wanted =
          std::any_of(shards_.begin(), shards_.end(), [&](const auto& shard) {
            return shard.is_mine(position_);
          });
      elements_.push_back(is_wanted ? std::move(element) : nullptr);
    }
    ++position_;
    return true;
  }

  BatchShard::Batch full_batch(size_t slot, int64_t first) const {
    BatchShard::Batch batch{.indices = {}, .num_real = per_rank_};
    for (int64_t i = 0; i < per_rank_; ++i) {
      batch.indices.push_back(first + ranks_[slot] * per_rank_ + i);
    }
    return batch;
  }

  Item collate(const BatchShard::Batch& batch, int64_t first) const {
    Item item;
    if (batch.indices.empty()) {
      return item;
    }
    std::vector<Any> samples;
    for (const int64_t position : batch.indices) {
      samples.push_back(
          position < static_cast<int64_t>(kept_.size())
              ? kept_[static_cast<size_t>(position)]
              : elements_[static_cast<size_t>(position - first)]);
    }
    item.batch = source_->collate(samples, batch.indices);
    item.facts.num_samples = static_cast<int64_t>(samples.size());
    item.facts.num_real = batch.num_real;
    return item;
  }

  std::shared_ptr<const BatchSource> source_;
  std::unique_ptr<ElementStream> stream_;
  std::vector<IterableShard> shards_;
  std::vector<int> ranks_;
  int64_t per_rank_;
  int64_t num_done_;
  int64_t position_ = 0;
  bool is_over_ = false;
  bool is_merged_;
  /// The elements of the current round; null if no rank needs them.
  std::vector<Any> elements_;
  /// The elements at the start of the epoch, which complete its last round.
  std::vector<Any> kept_;
};

} // namespace

std::shared_ptr<RoundMaker> make_map_rounds(
    const EpochPlan& plan,
    const std::vector<int>& ranks) {
  return std::make_shared<MapRounds>(plan, ranks);
}

std::shared_ptr<RoundMaker> make_stream_rounds(
    const EpochPlan& plan,
    const std::vector<int>& ranks) {
  std::vector<IterableShard> shards;
  for (const int rank : ranks) {
    shards.emplace_back(
        plan.batch_options(),
        ShardOptions{rank, plan.context.shard.world_size},
        plan.num_done);
  }
  return std::make_shared<StreamRounds>(
      plan,
      plan.source->open(plan.epoch, 0, 1),
      std::move(shards),
      ranks,
      plan.num_done);
}

std::shared_ptr<RoundMaker>
make_slice_rounds(const EpochPlan& plan, int64_t index, int64_t count) {
  const BatchOptions options{
      .batch_size = plan.per_rank(),
      .drop_last = plan.options.drop_last,
      .even_batches = false};
  return std::make_shared<StreamRounds>(
      plan,
      plan.source->open(plan.epoch, index, count),
      std::vector<IterableShard>{IterableShard(options, {})},
      std::vector<int>{0},
      /*num_done=*/0);
}

} // namespace accelerate::detail
