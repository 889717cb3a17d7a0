// SPDX-License-Identifier: Apache-2.0
#include "training/state/page_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace accelerate {
namespace {

constexpr std::size_t kMostKept = 2; // blocks per size

struct Block {
  void* memory = nullptr;
  std::size_t size = 0;
};

class PageAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (size < kSmallestPages) {
      return c10::GetCPUAllocator()->allocate(size);
    }
    auto* block = new Block{take(size), size};
    if (block->memory == MAP_FAILED) {
      delete block;
      TORCH_CHECK_WITH(
          OutOfMemoryError,
          false,
          "Cannot allocate ",
          size,
          " bytes of host memory: ",
          std::strerror(errno));
    }
    return {block->memory, block, &PageAllocator::free, c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static void free(void* context) {
    auto* block = static_cast<Block*>(context);
    static_cast<PageAllocator&>(page_allocator()).keep(*block);
    delete block;
  }

  void* take(std::size_t size) {
    // The mutex may be locked forever in a forked child.
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      auto& kept = kept_[size];
      if (!kept.empty()) {
        void* memory = kept.back();
        kept.pop_back();
        return memory;
      }
    }
    return mmap(
        nullptr,
        size,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
  }

  void keep(const Block& block) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      auto& kept = kept_[block.size];
      if (kept.size() < kMostKept) {
        kept.push_back(block.memory);
        return;
      }
    }
    munmap(block.memory, block.size);
  }

  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> kept_;
};

} // namespace

c10::Allocator& page_allocator() {
  // Never destroyed, because destructors that run at exit may still free
  // tensors.
  static auto* allocator = new PageAllocator;
  return *allocator;
}

} // namespace accelerate
