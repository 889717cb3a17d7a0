// SPDX-License-Identifier: Apache-2.0
// How ranks that are still training tell finished ranks which collectives
// follow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/distributed/join.h"
#include "accelerate/distributed/process_group.h"
#include "core/base/internal.h"

namespace accelerate {

enum class JoinEvent : int64_t { kForward, kBackward, kReduction };

/// The next action of all training ranks.
struct JoinAnnouncement {
  JoinEvent event = JoinEvent::kForward;
  /// The index of the guard's model or, for a reduction, the number of
  /// elements.
  int64_t model = 0;
  /// Whether a graph is recorded, and whether gradients are synchronised.
  bool records = false;
  bool syncs = false;
  /// The number of training ranks, and the highest training rank. All ranks use
  /// its buffers.
  int64_t num_active = 0;
  int last_active = 0;
};

/// One small collective per event: each training rank calls `announce`, and
/// each finished rank calls `listen`.
class JoinChannel {
 public:
  JoinChannel(ProcessGroup group, JoinOptions options);

  /// How many updates this rank has made. Ranks compare the counts.
  void set_num_updates(std::function<int64_t()> num_updates) {
    num_updates_ = std::move(num_updates);
  }

  /// Throws `MismatchError` if ranks announce different things.
  JoinAnnouncement
  announce(JoinEvent event, int64_t model, bool records, bool syncs);
  /// Called by a finished rank with `num_unfinished` micro-batches in
  /// incomplete accumulations. Empty when all ranks have finished.
  std::optional<JoinAnnouncement> listen(int64_t num_unfinished);
  /// The `num_unfinished` of each rank when the last rank finished.
  const std::vector<int64_t>& unfinished_of_ranks() const {
    return unfinished_of_ranks_;
  }

  /// The rank whose parameters all ranks receive at the end. Empty if no rank
  /// had a batch.
  std::optional<int> last_trained() const { return last_trained_; }
  /// The number by which synchronised gradients are divided.
  int64_t divisor(const JoinAnnouncement& announced) const;
  bool divides_by_active() const {
    return !options_.divide_by_initial_world_size;
  }

 private:
  std::optional<JoinAnnouncement> exchange(
      const std::vector<int64_t>& facts,
      int64_t status);

  ProcessGroup group_;
  JoinOptions options_;
  std::function<int64_t()> num_updates_;
  std::optional<int> last_trained_;
  std::vector<int64_t> unfinished_of_ranks_;
};

/// The small reductions of a training step, such as overflow flags and loss
/// weights. Inside a join, ranks without batches take part in them.
class ACCELERATE_INTERNAL StepReductions {
 public:
  /// Broadcasts the state of `root`'s step, except for its models, to all
  /// ranks.
  using Share = std::function<void(int root)>;

  using Engines = std::vector<std::shared_ptr<ParallelEngine>>;
  /// The number of micro-batches in incomplete accumulations of these engines'
  /// models.
  using Unfinished = std::function<int64_t(const Engines& engines)>;

  StepReductions(ProcessGroup group, c10::Device device);
  void set_share(Share share) { share_ = std::move(share); }
  void set_unfinished(Unfinished unfinished) {
    unfinished_ = std::move(unfinished);
  }
  /// Sets the update count of this rank, and what to do when all ranks have the
  /// same weights after a join.
  void set_updates(
      std::function<int64_t()> num_updates,
      std::function<void()> forget_updates) {
    num_updates_ = std::move(num_updates);
    forget_updates_ = std::move(forget_updates);
  }
  const ProcessGroup& group() const { return group_; }

  /// Reduces `numbers`: floats for a maximum, doubles for a sum. Zeros do not
  /// change the result. Returns the divisor of gradients that are synchronised
  /// in this step.
  int64_t reduce(at::Tensor& numbers, ReduceOp op);

  void begin_join(std::shared_ptr<JoinChannel> channel, const Engines& engines);
  void end_join();
  bool is_joining() const { return join_ != nullptr; }
  /// Whether ranks without batches would not take part in the collectives of
  /// this engine.
  bool leaves_out(const ParallelEngine& engine) const;
  int64_t num_unfinished() const;
  /// Called on a rank without batches: makes the matching reduction.
  void match(const JoinAnnouncement& announced) const;
  void share(int root) const;

 private:
  ProcessGroup group_;
  c10::Device device_;
  Share share_;
  Unfinished unfinished_;
  std::function<int64_t()> num_updates_;
  std::function<void()> forget_updates_;
  std::shared_ptr<JoinChannel> join_;
  Engines joined_;
};

} // namespace accelerate
