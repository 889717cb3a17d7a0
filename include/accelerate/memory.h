// SPDX-License-Identifier: Apache-2.0
// What to do where memory runs out.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <type_traits>

#include "accelerate/export.h"

namespace accelerate {

/// Whether an exception says that memory of the CPU or a device ran out:
/// `std::bad_alloc`, `c10::OutOfMemoryError`, and what torch throws instead.
ACCELERATE_API bool is_out_of_memory(const std::exception& error);

/// Gives cached memory of all devices back, so that it can be had in other
/// sizes.
ACCELERATE_API void clear_device_cache();

struct ACCELERATE_API BatchSizeSearchOptions {
  /// From the size that did not fit to the next one to try; nine tenths by
  /// default. Halving: `[](int64_t size) { return size / 2; }`.
  std::function<int64_t(int64_t)> reduce_batch_size = {};
};

namespace detail {

/// The next size. Throws `UsageError` where `reduce_batch_size` does not make
/// it smaller, and where it reaches zero.
ACCELERATE_API int64_t
next_batch_size(int64_t batch_size, const BatchSizeSearchOptions& options);
ACCELERATE_API void check_batch_size(int64_t batch_size);

} // namespace detail

/// Calls `function(batch_size)` with smaller and smaller sizes until memory
/// suffices, and returns what it returned. Everything that takes memory should
/// be made inside, so that it is freed before the next try. Other exceptions
/// pass. Across ranks, let all of them meet a size that does not fit (as they
/// do with equal GPUs): one that fails alone leaves the others waiting.
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
    // Only here is the exception gone, and with it what it may hold.
    clear_device_cache();
    batch_size = detail::next_batch_size(batch_size, options);
  }
}

} // namespace accelerate
