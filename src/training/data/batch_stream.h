// SPDX-License-Identifier: Apache-2.0
// How the batches of one epoch are made. Makers create rounds, on workers or in
// the loop's thread. Streams turn rounds into the batches of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data_loader.h"
#include "core/base/ordered_workers.h"
#include "training/state/step_state.h"
#include "training/verification/step_recorder.h"

namespace accelerate::detail {

/// One epoch of one loader.
struct EpochPlan {
  std::shared_ptr<const BatchSource> source;
  /// The options of the loader as they apply to this rank.
  DataLoaderOptions options;
  LoaderContext context;
  uint64_t seed = 0;
  int64_t epoch = 0;
  /// What loops have already returned. This counts samples of all ranks, or
  /// batches of all ranks if a `batch_sampler` varies their size, or batches of
  /// this rank for sources that shard themselves.
  int64_t num_done = 0;

  BatchOptions batch_options() const;
  /// The number of samples per batch of one rank.
  int64_t per_rank() const;
  bool is_stream() const { return source->size() == BatchSource::kUnknown; }
  bool shards_itself() const {
    return is_stream() && !is_dispatched() &&
           options.iterable_sharding == IterableSharding::kSource;
  }
  /// For `accelerate verify`.
  static bool reads_same_batches() {
    const auto* recorder = StepRecorder::get();
    return recorder != nullptr && recorder->has_same_batches();
  }
  bool is_dispatched() const {
    return options.dispatch_batches && context.shard.world_size > 1 &&
           !context.is_merged && !reads_same_batches();
  }
};

/// A batch in progress. With neither `batch` nor `message`, the rank gets no
/// batch.
struct Item {
  Any batch;
  /// The batch as bytes instead, if it is sent to another rank.
  at::Tensor message;
  BatchFacts facts;

  bool is_there() const { return batch || message.defined(); }
};

/// Calls `f` with each tensor of the batch, which `f` may replace.
template <class F>
void for_each_tensor(const BatchSource& source, const Any& batch, F f) {
  struct Caller final : tree::Visitor {
    explicit Caller(F& f) : f(f) {}
    void tensor(at::Tensor& tensor) override { f(tensor); }
    F& f;
  } caller(f);
  source.visit(batch, caller);
}

/// One item for each rank that a maker reads for, or one for all of them if the
/// plan merges them. Empty at the end.
using Round = std::vector<Item>;

class RoundMaker {
 public:
  static constexpr int64_t kUnknown = -1;
  virtual ~RoundMaker() = default;
  virtual int64_t num_rounds() const = 0;
  /// If the number of rounds is known, several threads may call this at once.
  /// Otherwise one thread calls it, in order, and again after the end.
  virtual Round make(int64_t index) = 0;
};

/// Makes rounds of a map-style dataset for `ranks`.
std::shared_ptr<RoundMaker> make_map_rounds(
    const EpochPlan& plan,
    const std::vector<int>& ranks);
/// Makes rounds of a whole iterable source for `ranks`.
std::shared_ptr<RoundMaker> make_stream_rounds(
    const EpochPlan& plan,
    const std::vector<int>& ranks);
/// Makes rounds of part `index` of `count` of a source, all for this rank.
std::shared_ptr<RoundMaker>
make_slice_rounds(const EpochPlan& plan, int64_t index, int64_t count);

/// Worker threads that wait for the next epoch. Several loops may take workers.
class WorkerPool : public std::enable_shared_from_this<WorkerPool> {
 public:
  /// The workers return to the pool by themselves, as long as it exists.
  std::shared_ptr<OrderedWorkers> take(int num_threads);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<OrderedWorkers>> idle_;
};

/// Returns rounds in order. Makes them ahead of time if there are workers.
class RoundQueue {
 public:
  /// Called for each item by the thread that made it. `slot` is the index of
  /// the item in its round.
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

/// The batches of this rank in one epoch, in order.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Empty at the end. Rethrows exceptions from reading.
  virtual std::optional<Item> next() = 0;
};

/// The next result or exception of a stream, requested early.
struct Peeked {
  std::optional<Item> item;
  std::exception_ptr error;

  bool is_end() const { return !item && !error; }
  /// Returns the result or throws the exception.
  std::optional<Item> take();
};
Peeked peek(BatchStream& stream);
/// The text of an exception for other ranks.
std::string message_of(const std::exception_ptr& error);

/// Makes a stream for a rank that reads for itself.
std::unique_ptr<BatchStream> make_local_stream(
    const EpochPlan& plan,
    WorkerPool& pool);
/// Makes a stream for a run in which rank 0 reads for all (`dispatch.cpp`).
std::unique_ptr<BatchStream> make_dispatch_stream(
    const EpochPlan& plan,
    WorkerPool& pool);
/// Moves the batches of `stream` to the plan's device, one batch ahead on a
/// GPU.
std::unique_ptr<BatchStream> make_placing_stream(
    const EpochPlan& plan,
    std::unique_ptr<BatchStream> stream);

/// Makes a queue over `maker` with the plan's workers.
std::unique_ptr<RoundQueue> make_queue(
    const EpochPlan& plan,
    WorkerPool& pool,
    std::shared_ptr<RoundMaker> maker,
    RoundQueue::Finish finish);
/// Pins the tensors of a batch that goes to a GPU.
void pin_for_device(const EpochPlan& plan, Item& item);

} // namespace accelerate::detail
