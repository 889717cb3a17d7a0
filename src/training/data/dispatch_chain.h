// SPDX-License-Identifier: Apache-2.0
// The messages by which rank 0, which reads for all ranks, sends each rank its
// batch in every round. They contain bytes and do not depend on the language
// that wrote them.
//
// There is a chain from rank 0 to each other rank. Each message describes the
// one that follows a few positions later, and an initial message describes the
// first few. One message per batch and rank is therefore enough, although only
// rank 0 knows the sizes. A rank recognises the last batch when it arrives. An
// error is sent in place of the batch in which it occurred.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "core/base/internal.h"
#include "training/state/step_state.h"

namespace accelerate::detail {

/// A message with room for `num_bytes` bytes, to be written to `content_of` it.
ACCELERATE_INTERNAL at::Tensor make_message(int64_t num_bytes);
/// The content of a message, aligned to 16 bytes.
ACCELERATE_INTERNAL std::span<char> content_of(const at::Tensor& message);

/// One rank's batch of a round.
struct DispatchedBatch {
  /// Undefined if the rank gets no batch, and for rank 0, which keeps its own.
  at::Tensor message;
  BatchFacts facts;
};

/// What a message says about a later one.
struct DispatchHead {
  enum Kind : int64_t { kEnd, kBatch, kError };
  int64_t kind = kEnd;
  /// The size of the whole message, including its own head.
  int64_t num_bytes = 0;
  int64_t num_samples = 0;
  int64_t num_real = 0;
};

/// Rank 0's side. Pass it rounds while `wants_turn()`. It then returns the
/// facts of rank 0's batch:
///
///     while (sender.wants_turn()) read, and call give(), fail() or end();
///     facts = sender.next();
///
/// Messages are sent in the background, possibly a few rounds ahead of the
/// other ranks. A loop may be left at any round if all ranks leave it there.
class ACCELERATE_INTERNAL DispatchSender {
 public:
  /// The other ranks receive `num_ahead` batches ahead of their loops. It must
  /// be the same on all ranks. Rank 0 reads twice as many rounds ahead, at
  /// least one. All ranks create their senders and receivers in the same order.
  DispatchSender(ProcessGroup group, int64_t num_ahead);

  /// Whether a round must be passed before `next`. False after the end.
  bool wants_turn() const;
  /// Passes one batch per rank and sets `is_last` of the facts. Rank 0 has a
  /// batch in every round. A rank without a batch gets no batch in later rounds
  /// either.
  void give(std::vector<DispatchedBatch> turn);
  /// Makes the next round a `DataError` with this message on the other ranks,
  /// and ends the chain.
  void fail(const std::string& message);
  void end();
  /// The facts of rank 0's own batch of the next round. Empty at the end and at
  /// the position of `fail`. Throws `UsageError` while `wants_turn()`.
  std::optional<BatchFacts> next();

 private:
  /// The batches of a round, or an error in their place, or the end.
  struct Turn {
    std::vector<DispatchedBatch> batches;
    at::Tensor error;
    /// Ranks that expect a message.
    std::vector<bool> is_expected;

    bool is_end() const { return batches.empty() && !error.defined(); }
  };

  void push(Turn turn);
  bool is_known(size_t index) const;
  DispatchHead next_head_of(size_t index, size_t rank);
  void send_first();
  void send_turn(size_t index);
  void send_due();

  ProcessGroup group_;
  int channel_;
  size_t world_size_;
  size_t num_ahead_;
  bool is_begun_ = false;
  bool is_over_ = false;
  /// Ranks that have received an end or an error.
  std::vector<bool> is_ended_;
  /// The next round to return, and later rounds that were passed.
  std::deque<Turn> turns_;
  /// How many rounds at the front of `turns_` were sent.
  size_t num_sent_ = 0;
  std::deque<std::vector<ProcessGroup::Work>> under_way_;
};

/// The side of all ranks except rank 0.
class ACCELERATE_INTERNAL DispatchReceiver {
 public:
  DispatchReceiver(ProcessGroup group, int64_t num_ahead);

  /// Waits for this rank's batch of the next round. Empty at the end. Throws
  /// `DataError` at the position of `fail`.
  std::optional<DispatchedBatch> next();

 private:
  struct Expected {
    DispatchHead head;
    /// Undefined until it is received, and if there is no message.
    at::Tensor message;
    ProcessGroup::Work transfer;
  };

  void receive_first();
  /// Starts to receive the messages among the first `count` expected ones.
  void start(size_t count);

  ProcessGroup group_;
  int channel_;
  size_t num_ahead_;
  bool is_begun_ = false;
  std::deque<Expected> expected_;
};

} // namespace accelerate::detail
