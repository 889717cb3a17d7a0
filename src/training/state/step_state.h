// SPDX-License-Identifier: Apache-2.0
// What loaders, models and optimizers of one Accelerator share about the
// current step, without knowing each other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/internal.h"

namespace accelerate {

/// What a loader knows about a batch when it returns the batch.
struct BatchFacts {
  /// Whether this is the last batch of the epoch.
  bool is_last = false;
  /// The number of samples in this rank's batch, and how many of them are real.
  /// The others are repeats that complete the batch.
  int64_t num_samples = 0;
  int64_t num_real = 0;
  /// The size of a full batch in this loop. 0 if batch sizes vary.
  /// `StepState::open_feed` sets it.
  int64_t full_size = 0;

  /// How many of `num_rows` rows are real. Real rows come first. With one row
  /// per sample, `num_real` rows are real. Otherwise (rows of tokens, or of the
  /// whole batch) all rows are real, unless the whole batch is a repeat.
  int64_t num_real_of(int64_t num_rows) const {
    if (num_real == 0 && num_samples > 0) {
      return 0;
    }
    return num_rows == num_samples ? num_real : num_rows;
  }
  /// Whether some samples are repeats and it is unknown which of these rows
  /// belong to them.
  bool mixes_repeats(int64_t num_rows) const {
    return num_real > 0 && num_real < num_samples && num_rows != num_samples;
  }
  /// Whether a short batch has as many rows as a full one. This happens if a
  /// loop repeats its loss `batch_size` times. Then only `num_real` rows count.
  bool has_rows_of_full_batch(int64_t num_rows) const {
    return num_rows == full_size && num_samples < full_size;
  }
};

/// The state of the current step: its batch, its forward and backward passes,
/// and its updates. Not thread-safe: only the training thread uses it.
class ACCELERATE_INTERNAL StepState {
 public:
  /// One running loop over a loader, owned by the loop's iterator. Destroying
  /// the iterator, at the end or after `break`, unregisters the loop.
  class Feed {
   public:
    virtual ~Feed() = default;
    /// Records that this loop has returned a batch. `batch()` returns its facts
    /// until another loop returns a batch.
    virtual void hand_out(const BatchFacts& facts) = 0;
    /// Ends the loop but keeps its batch for `batch_in_use`, e.g. after
    /// `next(iter(loader))`.
    virtual void leave() = 0;
  };
  StepState();
  /// `full_size`: see `BatchFacts`.
  std::shared_ptr<Feed> open_feed(int64_t full_size = 0);
  /// The latest batch of the running loops. Empty outside of loops.
  std::optional<BatchFacts> batch() const;
  /// Like `batch()`. If no loop is running, returns the last batch of a loop
  /// that has called `leave`, until another loop returns a batch.
  std::optional<BatchFacts> batch_in_use() const;

  /// Whether the current step ends with an update of the weights.
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool sync) { sync_gradients_ = sync; }

  /// Whether a prepared model was called for training since the last step.
  bool has_forward() const { return num_forwards_ > 0; }
  void note_forward() { ++num_forwards_; }
  void note_backward() {
    ++num_backwards_;
    ++total_backwards_;
  }
  /// Forward passes and backward passes since the last step. Forward passes
  /// without a backward pass carry over to the next step.
  struct Counts {
    int64_t num_forwards = 0;
    int64_t num_backwards = 0;
  };
  Counts counts() const { return {num_forwards_, num_backwards_}; }
  void set_counts(const Counts& counts) {
    num_forwards_ = std::max<int64_t>(0, counts.num_forwards);
    num_backwards_ = std::max<int64_t>(0, counts.num_backwards);
  }
  /// Backwards since the process started, including replayed ones. Loading
  /// state does not change it.
  int64_t total_backwards() const { return total_backwards_; }
  void note_replayed_backwards(int64_t count) {
    total_backwards_ += count;
    has_replayed_ = true;
  }
  bool has_replayed() const { return has_replayed_; }

  /// Records whether the last backward pass synchronised gradients.
  void set_synchronised(bool synchronised) {
    is_synchronised_ = synchronised;
    num_synchronised_ += synchronised ? 1 : 0;
  }
  /// The number of backward passes that synchronised gradients.
  int64_t num_synchronised() const { return num_synchronised_; }

  /// Call this when the last micro-batch of an accumulation begins.
  void note_due_update() { ++num_due_updates_; }
  /// The number of consecutive earlier accumulations whose last micro-batch had
  /// no backward.
  int64_t num_missed_updates() const {
    return std::max<int64_t>(0, num_due_updates_ - (sync_gradients_ ? 1 : 0));
  }
  void end_due_updates() {
    if (sync_gradients_) {
      num_due_updates_ = 0;
    }
  }

  /// Counts that must be equal on all ranks, otherwise their weights diverge.
  /// Only steps with synchronised gradients count. `reset_update_counts` resets
  /// them.
  struct UpdateCounts {
    static constexpr size_t kMostOptimizers = 16;
    /// The updates by each optimizer. The last entry counts those of all
    /// additional optimizers.
    std::array<int64_t, kMostOptimizers> updates = {};
    int64_t clips = 0;
    /// Updates that ran after `zero_grad` had already cleared the gradients.
    int64_t empty_updates = 0;

    UpdateCounts& operator+=(const UpdateCounts& other) {
      return add(other, 1);
    }
    UpdateCounts& operator-=(const UpdateCounts& other) {
      return add(other, -1);
    }

   private:
    UpdateCounts& add(const UpdateCounts& other, int64_t factor) {
      for (size_t i = 0; i < kMostOptimizers; ++i) {
        updates[i] += factor * other.updates[i];
      }
      clips += factor * other.clips;
      empty_updates += factor * other.empty_updates;
      return *this;
    }
  };
  const UpdateCounts& update_counts() const { return update_counts_; }
  void set_update_counts(const UpdateCounts& counts) {
    update_counts_ = counts;
  }
  void reset_update_counts() {
    update_counts_ = {};
    num_due_updates_ = 0;
  }
  /// Registers an optimizer and returns its index in `updates`.
  size_t add_optimizer() {
    return std::min(num_optimizers_++, UpdateCounts::kMostOptimizers - 1);
  }
  void note_update(size_t optimizer, bool is_empty) {
    update_counts_.updates[optimizer] += is_synchronised_ ? 1 : 0;
    update_counts_.empty_updates += is_synchronised_ && is_empty ? 1 : 0;
  }
  void note_clip() { update_counts_.clips += is_synchronised_ ? 1 : 0; }

  /// Whether the current step is being recorded. Host code runs once, while the
  /// step is recorded. Device work runs in every replay.
  bool is_captured() const { return is_captured_; }
  void set_captured(bool is_captured) { is_captured_ = is_captured; }
  /// Whether gradients are zeroed in place rather than released, because
  /// replayed steps accumulate into their memory.
  bool keeps_gradients() const { return keeps_gradients_; }
  void set_keeps_gradients(bool keeps) { keeps_gradients_ = keeps; }

  /// Call this after each update of the weights, including skipped ones.
  void end_step() {
    num_forwards_ = std::max<int64_t>(0, num_forwards_ - num_backwards_);
    num_backwards_ = 0;
  }

 private:
  struct Feeds;
  std::shared_ptr<Feeds> feeds_;
  bool sync_gradients_ = true;
  int64_t num_forwards_ = 0;
  int64_t num_backwards_ = 0;
  int64_t total_backwards_ = 0;
  bool is_synchronised_ = false;
  int64_t num_synchronised_ = 0;
  int64_t num_due_updates_ = 0;
  UpdateCounts update_counts_;
  size_t num_optimizers_ = 0;
  bool has_replayed_ = false;
  bool is_captured_ = false;
  bool keeps_gradients_ = false;
};

} // namespace accelerate
