// SPDX-License-Identifier: Apache-2.0
// Threads that work ahead of a reader, in order and with bounded memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Computes the values of tasks 0, 1, 2, ... on its own threads and returns
/// them in that order. The threads live as long as the object and serve any
/// number of consecutive runs.
///
/// One thread (the reader) calls `start`, `next` and `stop`. Workers call the
/// task, concurrently if there are several. An exception of a task is rethrown
/// by the `next` that would have returned its value.
///
///     OrderedWorkers workers(2);
///     workers.start({.num_tasks = 100, .capacity = 4}, task);
///     for (int i = 0; i < 100; ++i) use(workers.next());
class ACCELERATE_INTERNAL OrderedWorkers {
 public:
  using Value = std::shared_ptr<void>;
  using Task = std::function<Value(int64_t index)>;
  struct Run {
    int64_t num_tasks = 0;
    /// The maximum number of values in progress or waiting to be taken.
    int64_t capacity = 1;
  };

  /// Each thread calls `prepare_thread` once before its first task. Throws
  /// `SystemError` if the system cannot create threads.
  explicit OrderedWorkers(
      int num_threads,
      std::function<void()> prepare_thread = {});
  /// Ends the run and joins the threads, after the current tasks.
  ~OrderedWorkers();
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  /// Starts a run, after the previous one has ended.
  void start(Run run, Task task);
  /// The value of the next task. Do not call it more often than there are
  /// tasks.
  Value next();
  /// Ends the run: waits for the current tasks and discards values that were
  /// not taken.
  void stop();

  int num_threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Slot {
    bool is_ready = false;
    Value value;
    std::exception_ptr error;
  };
  void end();
  void work();
  bool has_task() const {
    return claimed_ < run_.num_tasks && claimed_ < taken_ + run_.capacity;
  }
  Slot& slot_of(int64_t index) {
    return slots_[static_cast<size_t>(index % run_.capacity)];
  }

  std::mutex mutex_;
  std::condition_variable task_is_there_;
  std::condition_variable value_is_there_;
  Run run_;
  Task task_;
  std::vector<Slot> slots_;
  int64_t claimed_ = 0;
  int64_t taken_ = 0;
  int num_busy_ = 0;
  bool is_ending_ = false;
  std::function<void()> prepare_thread_;
  std::vector<std::thread> threads_;
};

} // namespace accelerate
