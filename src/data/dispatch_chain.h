// SPDX-License-Identifier: Apache-2.0
// The messages by which rank 0, which reads for all ranks, sends each of them
// its own batch in every turn: bytes, whatever language wrote them.
//
// Between rank 0 and each other rank runs a chain. Each message says what the
// one a few places behind it is, and a first one of all what those at the front
// are. So one message per batch and rank is enough although only rank 0 knows
// their sizes, a rank knows the last batch when it has it, and what went wrong
// stands in the chain where the batch would have stood.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process_group.h"
#include "state/step_state.h"

namespace accelerate::detail {

/// A message with room for `num_bytes` at `content_of` it.
ACCELERATE_API at::Tensor make_message(int64_t num_bytes);
/// At a multiple of 16.
ACCELERATE_API std::span<char> content_of(const at::Tensor& message);

/// One rank's batch of a turn.
struct DispatchedBatch {
  /// Undefined where the rank gets no batch, and for rank 0, which keeps its
  /// own.
  at::Tensor message;
  BatchFacts facts;
};

/// What a message says of one that follows.
struct DispatchHead {
  enum Kind : int64_t { kEnd, kBatch, kError };
  int64_t kind = kEnd;
  /// Of the whole message, its own head included.
  int64_t num_bytes = 0;
  int64_t num_samples = 0;
  int64_t num_real = 0;
};

/// Rank 0's side. It is given turns as long as it wants some, and then says
/// what rank 0 hands out:
///
///     while (sender.wants_turn()) read, and call give(), fail() or end();
///     facts = sender.next();
///
/// Messages go out beside the loop, which may be a few turns ahead of the other
/// ranks'. A loop may be left at any turn, if all ranks leave it there.
class ACCELERATE_API DispatchSender {
 public:
  /// `num_ahead`: so many batches the others receive ahead of their loops; the
  /// same on all ranks. Rank 0 reads twice as many turns ahead, at least one.
  /// All ranks make their senders and receivers in the same order.
  DispatchSender(ProcessGroup group, int64_t num_ahead);

  /// Whether a turn has to be given before `next`; not behind the end.
  bool wants_turn() const;
  /// One for each rank; `is_last` of the facts is found out here. Rank 0 has a
  /// batch in every turn. A rank that gets none gets none from then on.
  void give(std::vector<DispatchedBatch> turn);
  /// The next turn is a `DataError` of this message on the other ranks, and the
  /// chain ends behind it.
  void fail(const std::string& message);
  void end();
  /// Of rank 0's own batch of the next turn; nothing at the end and where
  /// `fail` stands. Throws `UsageError` while a turn is wanted.
  std::optional<BatchFacts> next();

 private:
  /// Batches, an error in their place, or the end.
  struct Turn {
    std::vector<DispatchedBatch> batches;
    at::Tensor error;
    /// Ranks that were told to expect a message.
    std::vector<bool> is_expected;

    bool is_end() const { return batches.empty() && !error.defined(); }
  };

  void push(Turn turn);
  bool is_known(size_t place) const;
  DispatchHead tell(size_t place, size_t rank);
  void send_first();
  void send_turn(size_t place);
  void send_due();

  ProcessGroup group_;
  int channel_;
  size_t world_size_;
  size_t num_ahead_;
  bool is_begun_ = false;
  bool is_over_ = false;
  /// Ranks that were told of an end or an error.
  std::vector<bool> is_ended_;
  /// The one to be handed out next and what was given behind it.
  std::deque<Turn> turns_;
  /// So many at the front of `turns_` were sent.
  size_t num_sent_ = 0;
  std::deque<std::vector<ProcessGroup::Work>> under_way_;
};

/// The side of the other ranks.
class ACCELERATE_API DispatchReceiver {
 public:
  DispatchReceiver(ProcessGroup group, int64_t num_ahead);

  /// Waits for this rank's batch of the next turn; nothing at the end. Throws
  /// `DataError` where `fail` stands.
  std::optional<DispatchedBatch> next();

 private:
  struct Expected {
    DispatchHead head;
    /// Undefined before it is received, and where no message comes.
    at::Tensor message;
    ProcessGroup::Work transfer;
  };

  void receive_first();
  /// Begins to receive what is expected at the front.
  void start(size_t count);

  ProcessGroup group_;
  int channel_;
  size_t num_ahead_;
  bool is_begun_ = false;
  std::deque<Expected> expected_;
};

} // namespace accelerate::detail
