// SPDX-License-Identifier: Apache-2.0
// What a training thread is doing, and since when. Recording takes a few
// nanoseconds. Other threads read the record to explain a hang.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/observe/step_times.h"
#include "core/base/internal.h"

namespace accelerate {

struct Membership;

/// The phases of a step. Phases may be nested. Time counts for the innermost
/// phase.
enum class StepPhase : uint8_t {
  kUser,
  kData,
  kForward,
  kBackward,
  kCommunication,
  kOptimizer,
  kCheckpoint,
  kCaptured,
};
inline constexpr size_t kNumPhases = 8;

/// "in user code", "waiting for data", ...
const char* words_for(StepPhase phase);

/// A collective as shown in messages. The strings are literals.
struct ObservedOperation {
  static constexpr size_t kMaxDims = 6;
  const char* name = nullptr;
  /// 0 if it consists of other collectives, which have their own numbers.
  uint64_t number = 0;
  const char* dtype = nullptr;
  size_t num_dims = 0;
  std::array<int64_t, kMaxDims> sizes = {};
  /// The size of a subgroup. 0 for the group of all ranks.
  int group_size = 0;
};

/// Marks in the work of a device that runs behind the host. For one thread at a
/// time. Never waits for the device.
class ACCELERATE_INTERNAL DeviceMarks {
 public:
  virtual ~DeviceMarks() = default;
  /// Leaves a mark after everything the calling thread has queued so far. False
  /// if the device cannot take one now.
  virtual bool leave() = 0;
  /// Takes the oldest mark. Returns the seconds since the previous mark, or 0
  /// for the first one. Empty if the device has not passed it.
  virtual std::optional<double> take() = 0;
};

/// What one thread does. Every thread that uses this library has a record.
class ACCELERATE_INTERNAL RankRecord {
 public:
  using Clock = std::chrono::steady_clock;

  /// Registered in `all` until the thread ends.
  static RankRecord& of_this_thread();
  static std::vector<std::shared_ptr<RankRecord>> all();

  RankRecord();
  RankRecord(const RankRecord&) = delete;
  RankRecord& operator=(const RankRecord&) = delete;

  /// Enters `phase`. Returns the phase that it interrupts, for `leave`.
  StepPhase enter(StepPhase phase);
  void leave(StepPhase before);
  void set_operation(const ObservedOperation& operation);
  void clear_operation();
  /// The purpose of an exchange, if it consists of other collectives.
  void set_topic(std::string topic);
  void join(const Membership& membership) {
    membership_.store(&membership, std::memory_order_release);
  }

  // These functions time the steps of this thread.

  /// Records an optimizer step. The training step ends when the next one
  /// starts.
  void note_update() { has_updated_ = true; }
  /// Records that a gradient is complete. The rest of a backward pass after the
  /// last gradient is communication. On a device only the very last gradient is
  /// marked, because a mark per gradient would cost more than it is worth.
  void note_gradient() { last_gradient_ = Clock::now(); }
  void note_last_gradient();
  /// Starts a run. A step in progress does not belong to this run. Steps are
  /// timed by the marks that `make` returns at the first of them, or by the
  /// host's clock if it returns none.
  void follow(std::function<std::unique_ptr<DeviceMarks>()> make);
  /// All steps of this thread, of any run, except those that the device has not
  /// finished.
  StepTimes step_times();

  // Other threads may call these functions. Each value is consistent by itself.
  pid_t thread() const { return thread_; }
  const Membership* membership() const {
    return membership_.load(std::memory_order_acquire);
  }
  StepPhase phase() const { return phase_.load(std::memory_order_relaxed); }
  Clock::time_point since() const {
    return Clock::time_point(
        Clock::duration(since_.load(std::memory_order_relaxed)));
  }
  /// The number of the latest collective, completed or not.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  /// The number of the current collective. 0 outside of one, or if it has none.
  uint64_t own_number() const {
    return own_number_.load(std::memory_order_relaxed);
  }
  /// "all_reduce Float[4, 2]". Empty outside of operations.
  std::string operation() const;

 private:
  std::atomic<StepPhase> phase_ = StepPhase::kUser;
  std::atomic<Clock::rep> since_;
  std::atomic<const Membership*> membership_ = nullptr;
  std::atomic<const char*> name_ = nullptr;
  std::atomic<const char*> dtype_ = nullptr;
  std::atomic<uint64_t> number_ = 0;
  std::atomic<uint64_t> own_number_ = 0;
  std::atomic<size_t> num_dims_ = 0;
  std::atomic<int> group_size_ = 0;
  std::array<std::atomic<int64_t>, ObservedOperation::kMaxDims> sizes_ = {};
  pid_t thread_;

  using Times = std::array<double, kNumPhases>;
  /// Switches this thread to the phase `next`.
  void change(StepPhase next);
  void begin_step();
  void end_step();
  void add_step(const Times& step);
  /// Attributes the time since the last change to `phase`.
  void mark(StepPhase phase);
  void take_marks();
  Times step_ = {};
  bool is_in_step_ = false;
  bool has_updated_ = false;
  /// Phases inside a captured step are not counted separately.
  bool is_captured_ = false;
  Clock::time_point last_gradient_ = {};

  /// The phase that a pending mark ends, and whether a step begins or ends
  /// there.
  struct MarkedPhase {
    StepPhase phase = StepPhase::kUser;
    bool begins_step = false;
    bool ends_step = false;
  };
  std::function<std::unique_ptr<DeviceMarks>()> make_marks_;
  std::unique_ptr<DeviceMarks> marks_;
  std::deque<MarkedPhase> marked_;
  Times device_step_ = {};
  bool has_last_gradient_ = false;

  int64_t num_steps_ = 0;
  Times all_steps_ = {};
  /// A ring buffer.
  std::vector<Times> last_steps_;

  mutable std::mutex mutex_;
  std::string topic_;
};

/// During the lifetime of this object, the thread is in `phase`.
class PhaseScope {
 public:
  explicit PhaseScope(StepPhase phase)
      : record_(RankRecord::of_this_thread()), before_(record_.enter(phase)) {}
  ~PhaseScope() { record_.leave(before_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  RankRecord& record_;
  StepPhase before_;
};

/// During the lifetime of this object, the thread waits in `operation`.
class OperationScope {
 public:
  OperationScope(
      StepPhase phase,
      const Membership* membership,
      const ObservedOperation& operation)
      : record_(RankRecord::of_this_thread()) {
    if (membership != nullptr) {
      record_.join(*membership);
    }
    record_.set_operation(operation);
    before_ = record_.enter(phase);
  }
  ~OperationScope() {
    record_.clear_operation();
    record_.leave(before_);
  }
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  RankRecord& record_;
  StepPhase before_;
};

/// During the lifetime of this object, operations of the thread belong to
/// `topic`.
class TopicScope {
 public:
  explicit TopicScope(std::string topic) {
    RankRecord::of_this_thread().set_topic(std::move(topic));
  }
  ~TopicScope() { RankRecord::of_this_thread().set_topic({}); }
  TopicScope(const TopicScope&) = delete;
  TopicScope& operator=(const TopicScope&) = delete;
};

} // namespace accelerate
