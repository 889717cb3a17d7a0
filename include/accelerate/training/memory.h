// SPDX-License-Identifier: Apache-2.0
// Handling of out-of-memory errors.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <type_traits>

#include "accelerate/export.h"

namespace accelerate {

/// Whether an exception means that CPU or device memory ran out:
/// `std::bad_alloc`, `c10::OutOfMemoryError`, and other exceptions that torch
/// throws in this case.
ACCELERATE_API bool is_out_of_memory(const std::exception& error);

/// Releases the cached memory of all devices, so that it can be allocated in
/// other sizes.
ACCELERATE_API void clear_device_cache();

struct ACCELERATE_API BatchSizeSearchOptions {
  /// Maps a size that did not fit to the next size to try. By default, the next
  /// size is nine tenths of the previous one. To halve the size, pass
  /// `[](int64_t size) { return size / 2; }`.
  std::function<int64_t(int64_t)> reduce_batch_size = {};
};

namespace detail {

/// Returns the next size. Throws `UsageError` if `reduce_batch_size` does not
/// reduce it, or if it reaches zero.
ACCELERATE_API int64_t
next_batch_size(int64_t batch_size, const BatchSizeSearchOptions& options);
ACCELERATE_API void check_batch_size(int64_t batch_size);

} // namespace detail

/// Calls `function(batch_size)` with decreasing sizes until memory suffices,
/// and returns its result. Allocate everything inside of `function`, so that
/// this memory is freed before the next attempt. Other exceptions are passed
/// on. With several ranks, a size must fail on all of them, as it does on
/// identical GPUs. If only one rank fails, the others wait for it.
///
///     accelerate::find_executable_batch_size(128, [&](int64_t batch_size) {
///       train(batch_size);
///     });
template <class Function>
auto find_executable_batch_size(
    int64_t starting_batch_size,
    Function&& function,
    const BatchSizeSearchOptions& options = {}) {
  int64_t batch_size = starting_batch_size;
  detail::check_batch_size(batch_size);
  clear_device_cache();
  while (true) {
    try {
      return function(batch_size);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) {
        throw;
      }
    }
    // Only now is the exception destroyed, together with the memory it may own.
    clear_device_cache();
    batch_size = detail::next_batch_size(batch_size, options);
  }
}

} // namespace accelerate
