// SPDX-License-Identifier: Apache-2.0
#include "training/data/dispatch_chain.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::detail {
namespace {

constexpr int64_t kHeadBytes = sizeof(DispatchHead);
static_assert(kHeadBytes % 16 == 0, "tensors behind it stay aligned");
/// The number of rounds whose messages may still be in transfer. Limits memory,
/// and how far rank 0 runs ahead.
constexpr size_t kMaxUnderWay = 3;

/// How many positions ahead each message describes. At least one, because
/// otherwise a rank could not recognise the last batch.
size_t num_announced(size_t num_ahead) {
  return std::max<size_t>(1, num_ahead);
}

at::Tensor make_first(size_t num_ahead) {
  return at::empty(
      {kHeadBytes * static_cast<int64_t>(num_announced(num_ahead))}, at::kByte);
}

void set_head(
    const at::Tensor& message,
    const DispatchHead& head,
    size_t index = 0) {
  std::memcpy(
      static_cast<DispatchHead*>(message.data_ptr()) + index,
      &head,
      sizeof(head));
}

DispatchHead head_of(const at::Tensor& message, size_t index = 0) {
  DispatchHead head;
  std::memcpy(
      &head,
      static_cast<DispatchHead*>(message.data_ptr()) + index,
      sizeof(head));
  return head;
}

} // namespace

at::Tensor make_message(int64_t num_bytes) {
  return at::empty({kHeadBytes + num_bytes}, at::kByte);
}

std::span<char> content_of(const at::Tensor& message) {
  return {
      static_cast<char*>(message.data_ptr()) + kHeadBytes,
      static_cast<size_t>(message.numel() - kHeadBytes)};
}

DispatchSender::DispatchSender(ProcessGroup group, int64_t num_ahead)
    : group_(std::move(group)),
      channel_(group_.open_channel()),
      world_size_(static_cast<size_t>(group_.world_size())),
      num_ahead_(static_cast<size_t>(num_ahead)),
      is_ended_(world_size_, false) {}

bool DispatchSender::wants_turn() const {
  return !is_over_ && turns_.size() <= num_ahead_ + num_announced(num_ahead_);
}

void DispatchSender::give(std::vector<DispatchedBatch> turn) {
  if (turn.size() != world_size_) {
    throw UsageError(str_cat(
        "[DispatchSender] Got ",
        turn.size(),
        " batches for ",
        world_size_,
        " ranks. Pass one for each rank"));
  }
  push({.batches = std::move(turn), .error = {}, .is_expected = {}});
}

void DispatchSender::fail(const std::string& message) {
  Turn turn;
  turn.error = make_message(static_cast<int64_t>(message.size()));
  std::memcpy(content_of(turn.error).data(), message.data(), message.size());
  set_head(turn.error, {});
  is_over_ = true;
  push(std::move(turn));
}

void DispatchSender::end() {
  is_over_ = true;
  push({});
}

void DispatchSender::push(Turn turn) {
  turn.is_expected.resize(world_size_);
  turns_.push_back(std::move(turn));
  send_due();
}

std::optional<BatchFacts> DispatchSender::next() {
  if (wants_turn()) {
    throw UsageError(
        "[DispatchSender] next() was called too early. Call give(), fail() or "
        "end() first");
  }
  if (turns_.empty()) {
    return std::nullopt;
  }
  send_due();
  while (under_way_.size() > kMaxUnderWay) {
    for (auto& transfer : under_way_.front()) {
      transfer.wait();
    }
    under_way_.pop_front();
  }
  const Turn turn = std::move(turns_.front());
  turns_.pop_front();
  --num_sent_;
  if (turn.batches.empty()) {
    return std::nullopt;
  }
  BatchFacts facts = turn.batches[0].facts;
  facts.is_last = turns_.front().is_end();
  return facts;
}

bool DispatchSender::is_known(size_t index) const {
  return is_over_ || index < turns_.size();
}

DispatchHead DispatchSender::next_head_of(size_t index, size_t rank) {
  DispatchHead head;
  if (index >= turns_.size() || is_ended_[rank]) {
    return head;
  }
  Turn& turn = turns_[index];
  if (turn.error.defined()) {
    head.kind = DispatchHead::kError;
    head.num_bytes = turn.error.numel();
  } else if (!turn.is_end() && turn.batches[rank].message.defined()) {
    const DispatchedBatch& batch = turn.batches[rank];
    head = {
        .kind = DispatchHead::kBatch,
        .num_bytes = batch.message.numel(),
        .num_samples = batch.facts.num_samples,
        .num_real = batch.facts.num_real};
  }
  turn.is_expected[rank] = head.kind != DispatchHead::kEnd;
  is_ended_[rank] = head.kind != DispatchHead::kBatch;
  return head;
}

void DispatchSender::send_first() {
  std::vector<ProcessGroup::Work> transfers;
  for (size_t rank = 1; rank < world_size_; ++rank) {
    const auto message = make_first(num_ahead_);
    for (size_t index = 0; index < num_announced(num_ahead_); ++index) {
      set_head(message, next_head_of(index, rank), index);
    }
    transfers.push_back(
        group_.start_send(message, static_cast<int>(rank), channel_));
  }
  under_way_.push_back(std::move(transfers));
}

void DispatchSender::send_turn(size_t index) {
  std::vector<ProcessGroup::Work> transfers;
  for (size_t rank = 1; rank < world_size_; ++rank) {
    const Turn& turn = turns_[index];
    if (!turn.is_expected[rank]) {
      continue;
    }
    const at::Tensor message =
        turn.error.defined() ? turn.error : turn.batches[rank].message;
    if (!turn.error.defined()) {
      set_head(message, next_head_of(index + num_announced(num_ahead_), rank));
    }
    transfers.push_back(
        group_.start_send(message, static_cast<int>(rank), channel_));
  }
  under_way_.push_back(std::move(transfers));
}

// Sends no further than the others receive while their loops are at the first
// round. If a loop is left there, every message still has a receiver.
void DispatchSender::send_due() {
  if (!is_begun_ && is_known(num_announced(num_ahead_) - 1)) {
    is_begun_ = true;
    send_first();
  }
  while (num_sent_ <= num_ahead_ && num_sent_ < turns_.size() &&
         is_known(num_sent_ + num_announced(num_ahead_))) {
    send_turn(num_sent_++);
  }
}

DispatchReceiver::DispatchReceiver(ProcessGroup group, int64_t num_ahead)
    : group_(std::move(group)),
      channel_(group_.open_channel()),
      num_ahead_(static_cast<size_t>(num_ahead)) {}

std::optional<DispatchedBatch> DispatchReceiver::next() {
  if (!is_begun_) {
    receive_first();
    is_begun_ = true;
  }
  if (expected_.front().head.kind == DispatchHead::kEnd) {
    return std::nullopt;
  }
  start(num_ahead_ + 1);
  expected_.front().transfer.wait();
  const DispatchHead head = expected_.front().head;
  const at::Tensor message = expected_.front().message;
  expected_.pop_front();
  expected_.push_back(
      {.head = head_of(message), .message = {}, .transfer = {}});
  if (head.kind == DispatchHead::kError) {
    const auto text = content_of(message);
    throw DataError(std::string(text.data(), text.size()));
  }
  start(num_ahead_);
  return DispatchedBatch{
      .message = message,
      .facts = {
          .is_last = expected_.front().head.kind == DispatchHead::kEnd,
          .num_samples = head.num_samples,
          .num_real = head.num_real}};
}

void DispatchReceiver::receive_first() {
  const auto first = make_first(num_ahead_);
  group_.start_receive(first, 0, channel_).wait();
  for (size_t index = 0; index < num_announced(num_ahead_); ++index) {
    expected_.push_back(
        {.head = head_of(first, index), .message = {}, .transfer = {}});
  }
}

void DispatchReceiver::start(size_t count) {
  for (size_t i = 0; i < std::min(count, expected_.size()); ++i) {
    Expected& expected = expected_[i];
    if (expected.head.kind != DispatchHead::kEnd &&
        !expected.message.defined()) {
      expected.message = at::empty({expected.head.num_bytes}, at::kByte);
      expected.transfer = group_.start_receive(expected.message, 0, channel_);
    }
  }
}

} // namespace accelerate::detail
