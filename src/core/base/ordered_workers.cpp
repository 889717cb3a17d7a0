// SPDX-License-Identifier: Apache-2.0
#include "core/base/ordered_workers.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

OrderedWorkers::OrderedWorkers(
    int num_threads,
    std::function<void()> prepare_thread)
    : prepare_thread_(std::move(prepare_thread)) {
  threads_.reserve(static_cast<size_t>(std::max(num_threads, 0)));
  try {
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error& error) {
    const auto num_started = threads_.size();
    end();
    throw SystemError(str_cat(
        "[workers] Only ",
        num_started,
        " of ",
        num_threads,
        " threads could be started: ",
        error.code().message(),
        ". Use fewer workers, or raise the limit on processes or memory"));
  }
}

OrderedWorkers::~OrderedWorkers() {
  end();
}

void OrderedWorkers::end() {
  stop();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  task_is_there_.notify_all();
  for (auto& thread : threads_) {
    thread.join();
  }
}

void OrderedWorkers::start(Run run, Task task) {
  stop();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    run_ = run;
    run_.capacity = std::max<int64_t>(run.capacity, 1);
    task_ = std::move(task);
    slots_ = std::vector<Slot>(static_cast<size_t>(run_.capacity));
    claimed_ = 0;
    taken_ = 0;
  }
  task_is_there_.notify_all();
}

OrderedWorkers::Value OrderedWorkers::next() {
  Slot done;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Slot& slot = slot_of(taken_);
    value_is_there_.wait(lock, [&] { return slot.is_ready; });
    done = std::exchange(slot, Slot{});
    ++taken_;
  }
  task_is_there_.notify_one();
  if (done.error) {
    std::rethrow_exception(done.error);
  }
  return std::move(done.value);
}

void OrderedWorkers::stop() {
  // Destroyed outside of the lock: values may be large, or run user code.
  std::vector<Slot> dropped;
  Task task;
  std::unique_lock<std::mutex> lock(mutex_);
  run_.num_tasks = 0;
  value_is_there_.wait(lock, [&] { return num_busy_ == 0; });
  dropped.swap(slots_);
  task = std::exchange(task_, nullptr);
  lock.unlock();
}

void OrderedWorkers::work() {
  if (prepare_thread_) {
    prepare_thread_();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    task_is_there_.wait(lock, [&] { return is_ending_ || has_task(); });
    if (is_ending_) {
      return;
    }
    const int64_t index = claimed_++;
    ++num_busy_;
    lock.unlock();
    Slot done;
    done.is_ready = true;
    try {
      // `task_` does not change while a worker is busy.
      done.value = task_(index);
    } catch (...) {
      done.error = std::current_exception();
    }
    lock.lock();
    slot_of(index) = std::move(done);
    --num_busy_;
    // Only the reader waits, for one value or for the last busy worker.
    if (index == taken_ || run_.num_tasks == 0) {
      value_is_there_.notify_one();
    }
  }
}

} // namespace accelerate
