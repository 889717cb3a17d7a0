// SPDX-License-Identifier: Apache-2.0
// How ranks that still train tell those that are done what comes next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/join.h"
#include "accelerate/process_group.h"

namespace accelerate {

enum class JoinEvent : int64_t { kForward, kBackward, kReduction };

/// What all ranks that train do next.
struct JoinNews {
  JoinEvent event = JoinEvent::kForward;
  /// Which of the guard's models; of a reduction: how many numbers.
  int64_t model = 0;
  /// Whether gradients are recorded, and whether they meet those of the others.
  bool records = false;
  bool syncs = false;
  /// Ranks that train, and the highest of them, whose buffers count.
  int64_t num_active = 0;
  int last_active = 0;
};

/// One small collective per event: each rank that trains announces, each rank
/// that is done listens.
class JoinChannel {
 public:
  JoinChannel(ProcessGroup group, JoinOptions options);

  /// Throws `MismatchError` where ranks announce different things.
  JoinNews announce(JoinEvent event, int64_t model, bool records, bool syncs);
  /// By a rank that is done, in the middle of windows where `num_unfinished`
  /// micro-batches wait for their end. Nothing when no rank trains any more.
  std::optional<JoinNews> listen(int64_t num_unfinished);
  /// What each rank listened with when the last was done.
  const std::vector<int64_t>& unfinished_of_ranks() const {
    return unfinished_of_ranks_;
  }

  /// The rank whose parameters all get in the end; nothing where no rank had a
  /// batch.
  std::optional<int> last_trained() const { return last_trained_; }
  /// By what gradients are divided.
  int64_t divisor(const JoinNews& news) const;
  bool divides_by_active() const {
    return !options_.divide_by_initial_world_size;
  }

 private:
  std::optional<JoinNews> exchange(
      const std::vector<int64_t>& facts,
      int64_t standing);

  ProcessGroup group_;
  JoinOptions options_;
  std::optional<int> last_trained_;
  std::vector<int64_t> unfinished_of_ranks_;
};

/// The small reductions of a training step: flags of overflow, weights of
/// losses. Inside of a join, ranks that have no batches left answer them.
class ACCELERATE_API StepReductions {
 public:
  /// Gives all ranks what `root` has of a step beside its models.
  using Share = std::function<void(int root)>;

  using Engines = std::vector<std::shared_ptr<ParallelEngine>>;
  /// How many micro-batches of these engines' models wait for the end of their
  /// windows.
  using Unfinished = std::function<int64_t(const Engines& engines)>;

  StepReductions(ProcessGroup group, c10::Device device);
  void set_share(Share share) { share_ = std::move(share); }
  void set_unfinished(Unfinished unfinished) {
    unfinished_ = std::move(unfinished);
  }
  const ProcessGroup& group() const { return group_; }

  /// `numbers` are floats to compare or doubles to add, of which zero changes
  /// nothing. Returns by what gradients are divided that meet now.
  int64_t reduce(at::Tensor& numbers, ReduceOp op);

  void begin_join(std::shared_ptr<JoinChannel> channel, const Engines& engines);
  void end_join();
  bool is_joining() const { return join_ != nullptr; }
  /// Whether ranks that have no batches left would not answer this engine.
  bool leaves_out(const ParallelEngine& engine) const;
  int64_t num_unfinished() const;
  /// On a rank that has no batches left.
  void match(const JoinNews& news) const;
  void share(int root) const;

 private:
  ProcessGroup group_;
  c10::Device device_;
  Share share_;
  Unfinished unfinished_;
  std::shared_ptr<JoinChannel> join_;
  Engines joined_;
};

} // namespace accelerate
