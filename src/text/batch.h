// SPDX-License-Identifier: Apache-2.0
// Distributes the elements of a batch over threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>

namespace accelerate::text {

/// State shared by the threads of one batch.
struct BatchState {
  explicit BatchState(size_t num_elements) : size(num_elements) {}

  const size_t size;
  /// The first element not yet taken.
  std::atomic<size_t> next = 0;
  /// The first element that has failed so far. Later ones can be skipped.
  std::atomic<size_t> failed = static_cast<size_t>(-1);
};

/// The elements of one thread, taken in small ranges, so that threads finish at
/// about the same time.
class BatchRange {
 public:
  BatchRange(BatchState& state, size_t& current)
      : state_(state), current_(current) {}
  /// The next element. Empty if there are none.
  std::optional<size_t> next();

 private:
  BatchState& state_;
  size_t& current_;
  size_t end_ = 0;
};

/// Calls `work` on up to `num_threads` threads (0: as many as worthwhile),
/// including the caller's, each with a share of `size` elements. An error in an
/// element stops the batch. Throws the error of the first element that failed,
/// with its index in the message.
void run_batch(
    size_t size,
    int num_threads,
    const std::function<void(BatchRange)>& work);

} // namespace accelerate::text
