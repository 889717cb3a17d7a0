// SPDX-License-Identifier: Apache-2.0
// How the batches of one epoch come about: makers make rounds, on workers or in
// the loop's thread; streams turn rounds into the batches of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data_loader.h"
#include "base/ordered_workers.h"
#include "state/step_state.h"

namespace accelerate::detail {

/// One epoch of one loader.
struct EpochPlan {
  std::shared_ptr<const BatchSource> source;
  /// As they count for this rank.
  DataLoaderOptions options;
  LoaderPlace place;
  uint64_t seed = 0;
  int64_t epoch = 0;
  /// Handed out before: samples of all ranks, batches of all ranks where a
  /// `batch_sampler` varies them, batches of this rank for sources that shard
  /// themselves.
  int64_t num_done = 0;

  BatchOptions batch_options() const;
  /// Samples of a batch of one rank.
  int64_t per_rank() const;
  bool is_stream() const { return source->size() == BatchSource::kUnknown; }
  bool shards_itself() const {
    return is_stream() && !is_dispatched() &&
           options.iterable_sharding == IterableSharding::kSource;
  }
  bool is_dispatched() const {
    return options.dispatch_batches && place.shard.world_size > 1;
  }
};

/// A batch on its way. Without `batch` and `message` a rank gets none.
struct Item {
  Any batch;
  /// The batch as bytes instead, where it goes to another rank.
  at::Tensor message;
  BatchFacts facts;

  bool is_there() const { return batch || message.defined(); }
};

/// One item for each rank that a maker reads for. Empty at the end.
using Round = std::vector<Item>;

class RoundMaker {
 public:
  static constexpr int64_t kUnknown = -1;
  virtual ~RoundMaker() = default;
  virtual int64_t num_rounds() const = 0;
  /// With a known number of rounds, called by several threads at once.
  /// Otherwise by one, in order, and again after the end.
  virtual Round make(int64_t index) = 0;
};

/// Rounds of a map data set for `ranks`.
std::shared_ptr<RoundMaker> make_map_rounds(
    const EpochPlan& plan,
    const std::vector<int>& ranks);
/// Rounds of a whole iterable source for `ranks`.
std::shared_ptr<RoundMaker> make_stream_rounds(
    const EpochPlan& plan,
    const std::vector<int>& ranks);
/// Rounds of part `index` of `count`, all for this rank.
std::shared_ptr<RoundMaker>
make_part_rounds(const EpochPlan& plan, int64_t index, int64_t count);

/// Threads that wait for the next epoch. They may be taken by several loops.
class WorkerShelf : public std::enable_shared_from_this<WorkerShelf> {
 public:
  /// Comes back by itself while the shelf lives.
  std::shared_ptr<OrderedWorkers> take(int num_threads);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<OrderedWorkers>> idle_;
};

/// Rounds in order, made ahead where there are workers.
class RoundQueue {
 public:
  /// What is done with each item where it is made; `slot` counts the ranks.
  using Finish = std::function<void(Item& item, size_t slot)>;

  /// `workers` may be null.
  RoundQueue(
      std::shared_ptr<RoundMaker> maker,
      Finish finish,
      std::shared_ptr<OrderedWorkers> workers,
      int64_t capacity);
  ~RoundQueue();
  RoundQueue(const RoundQueue&) = delete;
  RoundQueue& operator=(const RoundQueue&) = delete;

  Round next();
  bool knows_last() const {
    return maker_->num_rounds() != RoundMaker::kUnknown;
  }

 private:
  std::shared_ptr<RoundMaker> maker_;
  Finish finish_;
  std::shared_ptr<OrderedWorkers> workers_;
  int64_t index_ = 0;
};

/// The batches of this rank of one epoch, one after the other.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Nothing at the end. Throws what reading threw.
  virtual std::optional<Item> next() = 0;
};

/// What a stream would give or throw, asked for early.
struct Peeked {
  std::optional<Item> item;
  std::exception_ptr error;

  bool is_end() const { return !item && !error; }
  /// Gives or throws it.
  std::optional<Item> take();
};
Peeked peek(BatchStream& stream);
/// What other ranks are told of it.
std::string message_of(const std::exception_ptr& error);

/// This rank reads for itself.
std::unique_ptr<BatchStream> make_local_stream(
    const EpochPlan& plan,
    WorkerShelf& shelf);
/// Rank 0 reads for all (`dispatch.cpp`).
std::unique_ptr<BatchStream> make_dispatch_stream(
    const EpochPlan& plan,
    WorkerShelf& shelf);
/// Puts the batches of `stream` on the plan's device, on a GPU one batch ahead.
std::unique_ptr<BatchStream> make_placing_stream(
    const EpochPlan& plan,
    std::unique_ptr<BatchStream> stream);

/// A queue over `maker` with the plan's workers.
std::unique_ptr<RoundQueue> make_queue(
    const EpochPlan& plan,
    WorkerShelf& shelf,
    std::shared_ptr<RoundMaker> maker,
    RoundQueue::Finish finish);
/// Pins the tensors of a batch that goes to a GPU.
void pin_for_device(const EpochPlan& plan, Item& item);

} // namespace accelerate::detail
