// SPDX-License-Identifier: Apache-2.0
#include "text/batch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/text.h"
#include "core/base/str.h"

namespace accelerate::text {
namespace {

constexpr size_t kRun = 16;
// With fewer elements, starting a thread takes longer than it saves.
constexpr size_t kMinElementsPerThread = 32;

size_t count_threads(size_t size, int asked) {
  if (asked > 0) {
    return std::clamp<size_t>(static_cast<size_t>(asked), 1, size);
  }
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::clamp<size_t>(size / kMinElementsPerThread, 1, cores);
}

// The error of the first element that failed.
class FirstError {
 public:
  void offer(BatchState& state, size_t index) {
    const std::lock_guard lock(mutex_);
    if (index < state.failed) {
      state.failed = index;
      error_ = std::current_exception();
    }
  }

  void rethrow(size_t index) const {
    if (!error_) {
      return;
    }
    const std::string where =
        str_cat("[Tokenizer::encode_batch] input ", index, ": ");
    try {
      std::rethrow_exception(error_);
    } catch (const InvalidUtf8Error& e) {
      throw InvalidUtf8Error(where + e.what(), e.position());
    } catch (const UsageError& e) {
      throw UsageError(where + e.what());
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

} // namespace

std::optional<size_t> BatchRange::next() {
  if (++current_ >= end_) {
    current_ = state_.next.fetch_add(kRun);
    end_ = std::min(current_ + kRun, state_.size);
  }
  const bool is_over = current_ >= state_.size || current_ > state_.failed;
  return is_over ? std::nullopt : std::optional(current_);
}

void run_batch(
    size_t size,
    int num_threads,
    const std::function<void(BatchRange)>& work) {
  if (size == 0) {
    return;
  }
  BatchState state(size);
  FirstError first_error;
  const auto run = [&] {
    size_t current = 0;
    try {
      work(BatchRange(state, current));
    } catch (...) {
      first_error.offer(state, current);
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < count_threads(size, num_threads); ++i) {
    threads.emplace_back(run);
  }
  run();
  threads.clear();
  first_error.rethrow(state.failed);
}

} // namespace accelerate::text
