// SPDX-License-Identifier: Apache-2.0
// What a ProcessGroup handle points to.
#pragma once

#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/process_group.h"

namespace accelerate {

class ProcessGroup::Impl {
 public:
  /// A group of one.
  Impl() = default;
  /// `owns` says whether the group is ours to shut down.
  Impl(
      c10::intrusive_ptr<c10d::ProcessGroup> group,
      std::string backend,
      bool owns,
      bool ranks_are_threads = false);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// The one place that every collective passes: numbers it, waits for it and
  /// turns what went wrong into an exception that names it.
  void run(
      const char* operation,
      const std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>&
          start);
  /// The first half of `run`: the operation is waited for later, by
  /// `finish`.
  c10::intrusive_ptr<c10d::Work> start(
      const char* operation,
      const std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>&
          start);
  void finish(const char* operation, c10d::Work& work);
  int open_channel() { return num_channels_++; }
  /// The tensor, contiguous and on a device that the group has a backend for.
  at::Tensor carried(const at::Tensor& tensor) const;
  /// The same for `work` that speaks to the other ranks by itself, as autograd
  /// does with DDP. Exceptions that have nothing to do with it pass.
  void guard(const char* operation, const std::function<void()>& work);
  void shutdown();

  /// See `ProcessGroup::check_collectives`; off while ranks compare.
  bool checks_collectives() const { return checks_collectives_; }
  void set_checks_collectives(bool on) { checks_collectives_ = on; }

  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  bool is_solo() const { return solo_; }
  bool ranks_are_threads() const { return ranks_are_threads_; }
  const std::string& backend() const { return backend_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

 private:
  [[noreturn]] void
  fail(const char* operation, const std::string& cause, double seconds) const;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::string backend_ = "solo";
  int rank_ = 0;
  int world_size_ = 1;
  bool solo_ = true;
  bool owns_ = false;
  bool speaks_cpu_ = true;
  bool ranks_are_threads_ = false;
  uint64_t num_operations_ = 0;
  int num_channels_ = 0;
  bool checks_collectives_ = false;
};

} // namespace accelerate
