// SPDX-License-Identifier: Apache-2.0
// The implementation behind a ProcessGroup handle.
#pragma once

#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/distributed/process_group.h"
#include "core/observe/rank_record.h"
#include "training/comm/board.h"
#include "training/comm/hang_exchange.h"

namespace accelerate {

class ProcessGroup::Impl {
 public:
  /// A group of one.
  Impl() = default;
  /// `owns` says whether this object shuts the group down.
  Impl(
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      std::string backend,
      bool owns,
      bool ranks_are_threads = false);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Identifies the call in messages.
  using Operation = ObservedOperation;
  using Start =
      std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>;
  /// Every collective goes through this function. It numbers the collective and
  /// converts errors, now or in `finish`, to exceptions that name it.
  /// `complete` runs when the operation is done, before `wait()` returns.
  /// `tensor` is this rank's contribution, or undefined if the rank has none.
  static Work start(
      const std::shared_ptr<Impl>& impl,
      const char* operation,
      const at::Tensor& tensor,
      const Start& start,
      std::function<void()> complete = {});
  void finish(const Operation& operation, c10d::Work& work);
  /// Pending work that must complete before the next operation: see `announce`.
  using Unsettled = std::function<void(const ProcessGroup& group)>;
  void set_unsettled(Unsettled unsettled) { unsettled_ = std::move(unsettled); }
  static void finish_comparison(const std::shared_ptr<Impl>& impl);
  /// The list that comparisons are added to while a step is recorded. Null
  /// otherwise. See `DeferredComparisons`.
  std::vector<std::string>* comparisons() const { return comparisons_; }
  void set_comparisons(std::vector<std::string>* comparisons) {
    comparisons_ = comparisons;
  }
  /// The number of the latest collective of any thread.
  uint64_t last_number() const { return counted_().value_or(num_operations_); }
  /// See `uncounted_collectives`.
  std::atomic<int64_t>& num_uncounted() const { return *uncounted_; }
  int open_channel() { return num_channels_++; }
  /// Null if ranks do not share memory, or hosts cannot communicate without a
  /// device.
  const std::shared_ptr<Board>& board() const { return board_; }
  /// The tensor in contiguous form, without conjugate or negative bits, on a
  /// device that the group has a backend for.
  at::Tensor carried(const at::Tensor& tensor) const;
  /// Whether the backend for CPU tensors also serves that device. Hosts wait
  /// for this backend.
  bool shares_cpu_backend(c10::DeviceType device) const;
  /// Whether CPU tensors can be sent without a device.
  bool hosts_communicate() const { return !substitute_; }
  /// See `BackendEntry`. Applies to the backend of that device.
  bool sums_after_exchange(c10::DeviceType device) const;
  /// Like `start`, but for `work` that communicates by itself, such as autograd
  /// with DDP. Unrelated exceptions are passed on.
  void guard(
      const char* operation,
      const std::function<void()>& work,
      StepPhase phase = StepPhase::kCommunication);
  /// Starts reporting long waits of this rank. No effect if ranks cannot query
  /// each other.
  void watch(std::chrono::milliseconds threshold);
  /// Watches this group as a rank of a run whose ranks are threads.
  void watch_as(Membership& membership) { membership_ = &membership; }
  /// Watches this subgroup as the rank of `whole` that it belongs to.
  void watch_with(const Impl& whole);
  /// Makes the calling thread the one that is watched.
  void join_record() const;

  /// Shuts the subgroup down together with this group.
  void adopt(std::weak_ptr<Impl> subgroup);
  void shutdown();

  /// See `ProcessGroup::check_collectives`. Disabled while ranks compare.
  bool checks_collectives() const { return checks_collectives_; }
  void set_checks_collectives(bool on) { checks_collectives_ = on; }

  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  bool is_solo() const { return solo_; }
  bool is_shut_down() const { return !solo_ && !group_; }
  bool ranks_are_threads() const { return ranks_are_threads_; }
  const std::string& backend() const { return backend_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

 private:
  Operation describe(const char* operation, const at::Tensor& tensor) const;
  [[noreturn]] void fail(
      const Operation& operation,
      const std::exception& error,
      double seconds) const;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::string backend_ = "solo";
  int rank_ = 0;
  int world_size_ = 1;
  bool solo_ = true;
  bool owns_ = false;
  /// If the group has no backend for CPU tensors: the device type that they are
  /// sent through.
  std::optional<c10::DeviceType> substitute_;
  bool ranks_are_threads_ = false;
  /// c10d's count, which includes collectives of user code, or our own count if
  /// c10d has none.
  std::function<std::optional<uint64_t>()> counted_;
  std::shared_ptr<std::atomic<int64_t>> uncounted_;
  uint64_t num_operations_ = 0;
  int num_channels_ = 0;
  bool checks_collectives_ = false;
  Unsettled unsettled_;
  std::vector<std::string>* comparisons_ = nullptr;
  std::vector<std::weak_ptr<Impl>> subgroups_;
  std::shared_ptr<HangExchange> exchange_;
  std::shared_ptr<Board> board_;
  Membership* membership_ = nullptr;
  bool is_subgroup_ = false;
};

struct ProcessGroup::Work::State {
  std::shared_ptr<Impl> impl;
  Impl::Operation operation;
  c10::intrusive_ptr<c10d::Work> work;
  std::function<void()> complete;
};

} // namespace accelerate
