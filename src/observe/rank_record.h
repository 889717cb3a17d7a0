// SPDX-License-Identifier: Apache-2.0
// What a thread that trains is doing, and since when: written by it at a few
// nanoseconds each time, read by whoever wants to know why it stands still.
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

#include "accelerate/export.h"
#include "accelerate/step_times.h"

namespace accelerate {

struct Membership;

/// What a step is made of. Parts lie in each other: time counts for the
/// innermost.
enum class Part : uint8_t {
  kUser,
  kData,
  kForward,
  kBackward,
  kCommunication,
  kOptimizer,
  kCheckpoint,
  kCaptured,
};
inline constexpr size_t kNumParts = 8;

/// "in code of the user's", "waiting for data", ...
ACCELERATE_API const char* words_for(Part part);

/// A collective as messages name it. Texts are literals.
struct ObservedOperation {
  static constexpr size_t kMaxDims = 6;
  const char* name = nullptr;
  /// 0 where it is made of others, which have theirs.
  uint64_t number = 0;
  const char* dtype = nullptr;
  size_t num_dims = 0;
  std::array<int64_t, kMaxDims> sizes = {};
  /// Of a group of some ranks; 0 for that of all.
  int group_size = 0;
};

/// Marks in the work of a device that runs behind the host. One thread at a
/// time. Nothing here waits for the device.
class ACCELERATE_API DeviceMarks {
 public:
  virtual ~DeviceMarks() = default;
  /// Behind what the calling thread has handed over so far; false where the
  /// device takes none now.
  virtual bool leave() = 0;
  /// Takes the oldest mark: seconds since the one taken before, 0 for the
  /// first. Nothing where the device has not passed it.
  virtual std::optional<double> take() = 0;
};

/// One for each thread that meets this library.
class ACCELERATE_API RankRecord {
 public:
  using Clock = std::chrono::steady_clock;

  /// Registered for `all` until the thread ends.
  static RankRecord& of_this_thread();
  static std::vector<std::shared_ptr<RankRecord>> all();

  RankRecord();
  RankRecord(const RankRecord&) = delete;
  RankRecord& operator=(const RankRecord&) = delete;

  /// The part that this one interrupts, for `leave`.
  Part enter(Part part);
  void leave(Part before);
  void set_operation(const ObservedOperation& operation);
  void clear_operation();
  /// What an exchange is about, where it is made of others.
  void set_topic(std::string topic);
  void join(const Membership& membership) {
    membership_.store(&membership, std::memory_order_release);
  }

  // The clock of this thread's steps.

  /// An optimizer has stepped: the step ends where the next begins.
  void note_update() { has_updated_ = true; }
  /// A gradient is there. What a backward takes behind the last one is
  /// communication. On a device only the last of all counts: a mark for each
  /// would cost more than it tells.
  void note_gradient() { last_gradient_ = Clock::now(); }
  void note_last_gradient();
  /// A run begins: a step under way is none of its own. Its steps are timed by
  /// the marks that `make` gives at the first of them, and by the host's clock
  /// where it gives none.
  void follow(std::function<std::unique_ptr<DeviceMarks>()> make);
  /// Of this thread, whichever run they belonged to; without those that the
  /// device has not ended.
  StepTimes step_times();

  // For other threads; each value by itself is true.
  pid_t thread() const { return thread_; }
  const Membership* membership() const {
    return membership_.load(std::memory_order_acquire);
  }
  Part part() const { return part_.load(std::memory_order_relaxed); }
  Clock::time_point since() const {
    return Clock::time_point(
        Clock::duration(since_.load(std::memory_order_relaxed)));
  }
  /// Of the last one, whether it is over or not.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  /// Of the one that it is in; 0 outside, and where that has no number.
  uint64_t own_number() const {
    return own_number_.load(std::memory_order_relaxed);
  }
  /// "all_reduce Float[4, 2]"; empty outside of operations.
  std::string operation() const;

 private:
  std::atomic<Part> part_ = Part::kUser;
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

  using Times = std::array<double, kNumParts>;
  /// From here on this thread is in `next`.
  void change(Part next);
  void begin_step();
  void end_step();
  void add_step(const Times& step);
  /// What has passed counts for `part`.
  void mark(Part part);
  void take_marks();
  Times step_ = {};
  bool is_in_step_ = false;
  bool has_updated_ = false;
  /// What lies in a captured step is no part of its own.
  bool is_captured_ = false;
  Clock::time_point last_gradient_ = {};

  /// What each mark under way ends.
  struct MarkedPart {
    Part part = Part::kUser;
    bool begins_step = false;
    bool ends_step = false;
  };
  std::function<std::unique_ptr<DeviceMarks>()> make_marks_;
  std::unique_ptr<DeviceMarks> marks_;
  std::deque<MarkedPart> marked_;
  Times device_step_ = {};
  bool has_last_gradient_ = false;

  int64_t num_steps_ = 0;
  Times all_steps_ = {};
  /// A ring.
  std::vector<Times> last_steps_;

  mutable std::mutex mutex_;
  std::string topic_;
};

/// This thread is in `part` while it lives.
class PartScope {
 public:
  explicit PartScope(Part part)
      : record_(RankRecord::of_this_thread()), before_(record_.enter(part)) {}
  ~PartScope() { record_.leave(before_); }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  RankRecord& record_;
  Part before_;
};

/// This thread waits in `operation` while it lives.
class OperationScope {
 public:
  OperationScope(
      Part part,
      const Membership* membership,
      const ObservedOperation& operation)
      : record_(RankRecord::of_this_thread()) {
    if (membership != nullptr) {
      record_.join(*membership);
    }
    record_.set_operation(operation);
    before_ = record_.enter(part);
  }
  ~OperationScope() {
    record_.clear_operation();
    record_.leave(before_);
  }
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  RankRecord& record_;
  Part before_;
};

/// Operations of this thread are part of `topic` while it lives.
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
