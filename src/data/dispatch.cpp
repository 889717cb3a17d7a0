// SPDX-License-Identifier: Apache-2.0
// Rank 0 reads for all ranks and sends each its own batch.
//
// Between rank 0 and each other rank runs a chain of messages. Each says what
// the one `kAhead` places behind it is, and the first message of all what the
// first `kAhead` are. So one message per batch and rank is enough although only
// rank 0 knows their sizes, a rank can receive `kAhead` batches ahead of its
// loop, it knows the last batch when it has it, and an exception stands in the
// chain where the batch would have stood.
#include <ATen/ATen.h>

#include <cstring>
#include <deque>
#include <numeric>

#include "base/str.h"
#include "data/batch_stream.h"

namespace accelerate::detail {
namespace {

struct Head {
  enum Kind : int64_t { kEnd, kBatch, kError };
  int64_t kind = kEnd;
  /// Of the whole message, its own head included.
  int64_t num_bytes = 0;
  int64_t num_samples = 0;
  int64_t num_real = 0;
};
constexpr size_t kAhead = 2;
constexpr int64_t kHeadBytes = sizeof(Head);
static_assert(kHeadBytes % 16 == 0, "tensors behind it stay aligned");

at::Tensor make_message(int64_t num_bytes) {
  return at::empty({kHeadBytes + num_bytes}, at::kByte);
}
char* content(const at::Tensor& message) {
  return static_cast<char*>(message.data_ptr()) + kHeadBytes;
}
void set_head(const at::Tensor& message, const Head& head, size_t place = 0) {
  std::memcpy(
      static_cast<Head*>(message.data_ptr()) + place, &head, sizeof(head));
}
Head head_of(const at::Tensor& message, size_t place = 0) {
  Head head;
  std::memcpy(
      &head, static_cast<Head*>(message.data_ptr()) + place, sizeof(head));
  return head;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

class RootStream final : public BatchStream {
 public:
  using MakeQueue = std::function<std::unique_ptr<RoundQueue>()>;

  /// `make_queue` is called late, as what it throws must reach all ranks.
  RootStream(const EpochPlan& plan, const MakeQueue& make_queue)
      : group_(plan.place.group),
        channel_(group_.open_channel()),
        world_size_(static_cast<size_t>(group_.world_size())),
        is_ended_(world_size_, false) {
    read([&] {
      queue_ = make_queue();
      return queue_->next();
    });
    std::vector<ProcessGroup::Work> transfers;
    for (size_t rank = 1; rank < world_size_; ++rank) {
      const auto message = at::empty({kHeadBytes * int64_t{kAhead}}, at::kByte);
      for (size_t i = 0; i < kAhead; ++i) {
        set_head(message, tell(i, rank), i);
      }
      transfers.push_back(
          group_.start_send(message, static_cast<int>(rank), channel_));
    }
    under_way_.push_back(std::move(transfers));
  }

  std::optional<Item> next() override {
    for (; num_sent_ <= kAhead; ++num_sent_) {
      send(num_sent_);
    }
    Stage stage = std::move(stages_.front());
    stages_.pop_front();
    --num_sent_;
    if (stage.error) {
      std::rethrow_exception(stage.error);
    }
    if (!stage.has_batch(0)) {
      return std::nullopt;
    }
    while (under_way_.size() > kAhead + 1) {
      for (auto& transfer : under_way_.front()) {
        transfer.wait();
      }
      under_way_.pop_front();
    }
    Item item = std::move(stage.round[0]);
    item.facts.is_last =
        !stages_.front().error && !stages_.front().has_batch(0);
    return item;
  }

 private:
  /// A round, an exception in its place, or the end.
  struct Stage {
    Round round;
    std::exception_ptr error;
    at::Tensor error_message;
    /// Ranks that were told to expect a message.
    std::vector<bool> is_expected;

    bool has_batch(size_t rank) const {
      return !round.empty() && round[rank].is_there();
    }
  };

  template <class F>
  void read(const F& read_round) {
    Stage stage;
    stage.is_expected.resize(world_size_);
    try {
      stage.round = read_round();
    } catch (...) {
      stage.error = std::current_exception();
      const std::string text = message_of(stage.error);
      stage.error_message = make_message(static_cast<int64_t>(text.size()));
      std::memcpy(content(stage.error_message), text.data(), text.size());
      set_head(stage.error_message, {});
    }
    is_over_ = stage.round.empty();
    stages_.push_back(std::move(stage));
  }

  /// The stage `place` behind the next one to be handed out.
  Stage& stage_at(size_t place) {
    while (stages_.size() <= place) {
      read([this] { return is_over_ ? Round{} : queue_->next(); });
    }
    return stages_[place];
  }

  /// What `rank` must know of a stage.
  Head tell(size_t place, size_t rank) {
    Stage& stage = stage_at(place);
    Head head;
    if (!is_ended_[rank] && stage.error) {
      head.kind = Head::kError;
      head.num_bytes = stage.error_message.numel();
    } else if (!is_ended_[rank] && stage.has_batch(rank)) {
      const Item& item = stage.round[rank];
      head = {
          .kind = Head::kBatch,
          .num_bytes = item.message.numel(),
          .num_samples = item.facts.num_samples,
          .num_real = item.facts.num_real};
    }
    stage.is_expected[rank] = head.kind != Head::kEnd;
    is_ended_[rank] = head.kind != Head::kBatch;
    return head;
  }

  void send(size_t place) {
    stage_at(place + kAhead);
    const Stage& stage = stage_at(place);
    std::vector<ProcessGroup::Work> transfers;
    for (size_t rank = 1; rank < world_size_; ++rank) {
      if (stage.is_expected[rank]) {
        const auto& message =
            stage.error ? stage.error_message : stage.round[rank].message;
        if (!stage.error) {
          set_head(message, tell(place + kAhead, rank));
        }
        transfers.push_back(
            group_.start_send(message, static_cast<int>(rank), channel_));
      }
    }
    under_way_.push_back(std::move(transfers));
  }

  ProcessGroup group_;
  int channel_;
  size_t world_size_;
  std::unique_ptr<RoundQueue> queue_;
  bool is_over_ = false;
  /// Ranks that were told of an end or an error.
  std::vector<bool> is_ended_;
  /// The one to be handed out next and what was read behind it.
  std::deque<Stage> stages_;
  /// So many at the front of `stages_` were sent.
  size_t num_sent_ = 0;
  std::deque<std::vector<ProcessGroup::Work>> under_way_;
};

class PeerStream final : public BatchStream {
 public:
  explicit PeerStream(const EpochPlan& plan)
      : group_(plan.place.group), channel_(group_.open_channel()), plan_(plan) {
    const auto first = at::empty({kHeadBytes * int64_t{kAhead}}, at::kByte);
    group_.start_receive(first, 0, channel_).wait();
    for (size_t i = 0; i < kAhead; ++i) {
      expect(head_of(first, i));
    }
  }

  std::optional<Item> next() override {
    if (expected_.front().head.kind == Head::kEnd) {
      return std::nullopt;
    }
    expected_.front().transfer.wait();
    const Head head = expected_.front().head;
    const at::Tensor message = expected_.front().message;
    expected_.pop_front();
    if (head.kind == Head::kError) {
      expect({});
      throw DataError(str_cat(
          "[DataLoader] rank 0, which reads for all ranks, failed: ",
          std::string_view(
              content(message),
              static_cast<size_t>(message.numel() - kHeadBytes))));
    }
    expect(head_of(message));
    tree::ByteReader reader(
        std::make_shared<at::Tensor>(message),
        content(message),
        message.numel() - kHeadBytes);
    Item item{
        .batch = plan_.source->read_bytes(reader),
        .message = {},
        .facts = {
            .is_last = expected_.front().head.kind == Head::kEnd,
            .num_samples = head.num_samples,
            .num_real = head.num_real}};
    pin_for_device(plan_, item);
    return item;
  }

 private:
  struct Expected {
    Head head;
    at::Tensor message;
    ProcessGroup::Work transfer;
  };

  void expect(const Head& head) {
    Expected expected;
    expected.head = head;
    if (head.kind != Head::kEnd) {
      expected.message = at::empty({head.num_bytes}, at::kByte);
      expected.transfer = group_.start_receive(expected.message, 0, channel_);
    }
    expected_.push_back(std::move(expected));
  }

  ProcessGroup group_;
  int channel_;
  EpochPlan plan_;
  std::deque<Expected> expected_;
};

} // namespace

std::unique_ptr<BatchStream> make_dispatch_stream(
    const EpochPlan& plan,
    WorkerShelf& shelf) {
  if (plan.place.shard.rank != 0) {
    return std::make_unique<PeerStream>(plan);
  }
  std::vector<int> ranks(static_cast<size_t>(plan.place.shard.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto finish = [plan](Item& item, size_t slot) {
    if (slot == 0) {
      pin_for_device(plan, item);
    } else if (item.batch) {
      tree::ByteWriter writer;
      plan.source->write(item.batch, writer);
      item.message = make_message(writer.size());
      writer.write(content(item.message));
      item.batch.reset();
    }
  };
  return std::make_unique<RootStream>(plan, [&] {
    return make_queue(
        plan,
        shelf,
        plan.is_stream() ? make_stream_rounds(plan, ranks)
                         : make_map_rounds(plan, ranks),
        finish);
  });
}

} // namespace accelerate::detail
