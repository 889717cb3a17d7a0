// SPDX-License-Identifier: Apache-2.0
// Work on the elements of a batch, shared among threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>

namespace accelerate::text {

/// What the threads of one batch share.
struct BatchState {
  explicit BatchState(size_t num_elements) : size(num_elements) {}

  const size_t size;
  /// The first element that nobody has taken.
  std::atomic<size_t> next = 0;
  /// The first element that failed so far; later ones need not be done.
  std::atomic<size_t> failed = static_cast<size_t>(-1);
};

/// The elements that one thread does: takes them in small runs, so that threads
/// finish together.
class BatchRange {
 public:
  BatchRange(BatchState& state, size_t& current)
      : state_(state), current_(current) {}
  /// The next element, unset where there are none.
  std::optional<size_t> next();

 private:
  BatchState& state_;
  size_t& current_;
  size_t end_ = 0;
};

/// Calls `work` on up to `num_threads` threads (0: as many as pay), the
/// caller's included, with a share of `size` elements each. An error in an
/// element stops the batch; the error of the first element that failed is
/// thrown, with its index in the message.
void run_batch(
    size_t size,
    int num_threads,
    const std::function<void(BatchRange)>& work);

} // namespace accelerate::text
