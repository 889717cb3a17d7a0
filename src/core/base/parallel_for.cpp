// SPDX-License-Identifier: Apache-2.0
#include "core/base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace accelerate {

void parallel_for(
    std::size_t count,
    std::size_t max_threads,
    const std::function<void(std::size_t)>& work) {
  std::vector<std::exception_ptr> problems(count);
  std::atomic<std::size_t> next = 0;
  const auto take_turns = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        problems[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      while (others.size() + 1 < std::min(count, max_threads)) {
        others.emplace_back(take_turns);
      }
    } catch (const std::system_error&) {
      // The system has no more threads. Those that have started do all the
      // work.
    }
    take_turns();
  }
  for (const auto& problem : problems) {
    if (problem) {
      std::rethrow_exception(problem);
    }
  }
}

} // namespace accelerate
