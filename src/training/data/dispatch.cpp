// SPDX-License-Identifier: Apache-2.0
// Rank 0 reads for all ranks and sends each rank its batch.
#include <deque>
#include <numeric>

#include "core/base/str.h"
#include "training/data/batch_stream.h"
#include "training/data/dispatch_chain.h"

namespace accelerate::detail {
namespace {

/// Hides the transfer of a batch behind an earlier step.
constexpr int64_t kAhead = 2;

class RootStream final : public BatchStream {
 public:
  using MakeQueue = std::function<std::unique_ptr<RoundQueue>()>;

  /// Calls `make_queue` late, because its exceptions must reach all ranks.
  RootStream(const EpochPlan& plan, const MakeQueue& make_queue)
      : sender_(plan.context.group, kAhead) {
    read([&] {
      queue_ = make_queue();
      return queue_->next();
    });
  }

  std::optional<Item> next() override {
    while (sender_.wants_turn()) {
      read([this] { return queue_->next(); });
    }
    if (const auto facts = sender_.next()) {
      Item item{
          .batch = std::move(own_.front()), .message = {}, .facts = *facts};
      own_.pop_front();
      return item;
    }
    if (error_) {
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
    return std::nullopt;
  }

 private:
  template <class F>
  void read(const F& read_round) {
    Round round;
    try {
      round = read_round();
    } catch (...) {
      error_ = std::current_exception();
      sender_.fail(str_cat(
          "[DataLoader] Rank 0 failed to read a batch for all ranks: ",
          message_of(error_)));
      return;
    }
    if (round.empty()) {
      sender_.end();
      return;
    }
    own_.push_back(std::move(round[0].batch));
    std::vector<DispatchedBatch> turn;
    for (Item& item : round) {
      turn.push_back({std::move(item.message), item.facts});
    }
    sender_.give(std::move(turn));
  }

  std::unique_ptr<RoundQueue> queue_;
  /// Rank 0's batches of rounds that were sent but not returned yet.
  std::deque<Any> own_;
  std::exception_ptr error_;
  DispatchSender sender_;
};

class PeerStream final : public BatchStream {
 public:
  explicit PeerStream(const EpochPlan& plan)
      : receiver_(plan.context.group, kAhead), plan_(plan) {}

  std::optional<Item> next() override {
    const auto received = receiver_.next();
    if (!received) {
      return std::nullopt;
    }
    const auto content = content_of(received->message);
    tree::ByteReader reader(
        std::make_shared<at::Tensor>(received->message),
        content.data(),
        static_cast<int64_t>(content.size()));
    Item item{
        .batch = plan_.source->read_bytes(reader),
        .message = {},
        .facts = received->facts};
    pin_for_device(plan_, item);
    return item;
  }

 private:
  DispatchReceiver receiver_;
  EpochPlan plan_;
};

} // namespace

std::unique_ptr<BatchStream> make_dispatch_stream(
    const EpochPlan& plan,
    WorkerPool& pool) {
  if (plan.context.shard.rank != 0) {
    return std::make_unique<PeerStream>(plan);
  }
  std::vector<int> ranks(static_cast<size_t>(plan.context.shard.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto finish = [plan](Item& item, size_t slot) {
    if (slot == 0) {
      pin_for_device(plan, item);
    } else if (item.batch) {
      tree::ByteWriter writer;
      plan.source->write(item.batch, writer);
      item.message = make_message(writer.size());
      writer.write(content_of(item.message).data());
      item.batch.reset();
    }
  };
  return std::make_unique<RootStream>(plan, [&] {
    return make_queue(
        plan,
        pool,
        plan.is_stream() ? make_stream_rounds(plan, ranks)
                         : make_map_rounds(plan, ranks),
        finish);
  });
}

} // namespace accelerate::detail
