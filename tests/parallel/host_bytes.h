// SPDX-License-Identifier: Apache-2.0
// The memory of each rank's tensors.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace accelerate::testing {

/// During its lifetime, counts the host memory that each thread has allocated
/// and not freed.
class HostBytes {
 public:
  struct Count {
    std::atomic<int64_t> now = 0;
    std::atomic<int64_t> peak = 0;
  };

  HostBytes() { c10::SetCPUAllocator(&allocator(), kPriority); }
  ~HostBytes() { c10::SetCPUAllocator(allocator().inner, kPriority); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;

  /// Of the calling thread, from now on.
  static const Count& restart() {
    auto& count = mine();
    count.peak = count.now.load();
    return count;
  }

 private:
  static constexpr uint8_t kPriority = 100;

  // Memory may outlive the thread, and the counting.
  static Count& mine() {
    thread_local auto* count = new Count;
    return *count;
  }

  struct Allocator final : c10::Allocator {
    struct Held {
      Count& count;
      c10::DataPtr memory;
      int64_t size;
    };
    c10::DataPtr allocate(size_t size) override {
      auto& count = mine();
      const auto num = static_cast<int64_t>(size);
      count.now += num;
      count.peak = std::max(count.peak.load(), count.now.load());
      auto memory = inner->allocate(size);
      void* data = memory.get();
      return {
          data,
          new Held{count, std::move(memory), num},
          [](void* held) {
            auto* own = static_cast<Held*>(held);
            own->count.now -= own->size;
            delete own;
          },
          c10::Device(c10::kCPU)};
    }
    void copy_data(void* to, const void* from, size_t size) const override {
      default_copy_data(to, from, size);
    }
    c10::Allocator* inner = c10::GetCPUAllocator();
  };
  static Allocator& allocator() {
    static auto* const allocator = new Allocator; // tensors refer to it
    return *allocator;
  }
};

} // namespace accelerate::testing
