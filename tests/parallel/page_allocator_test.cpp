// SPDX-License-Identifier: Apache-2.0
#include "training/state/page_allocator.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <vector>

#include "training/parallel/memory_layout.h"

namespace accelerate {
namespace {

// No other test allocates this many bytes.
constexpr std::size_t kSize = (std::size_t{5} << 20) + 4096 * 3;

bool is_mapped(void* memory) {
  unsigned char pages = 0;
  return mincore(memory, 1, &pages) == 0 || errno != ENOMEM;
}

TEST(PageAllocator, CachesTwoBlocksPerSizeAndReleasesOthers) {
  std::vector<void*> addresses;
  {
    std::vector<c10::DataPtr> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(page_allocator().allocate(kSize));
      addresses.push_back(blocks.back().get());
      static_cast<char*>(addresses.back())[kSize - 1] = 1;
    }
    EXPECT_EQ(std::set(addresses.begin(), addresses.end()).size(), 4u);
  }
  EXPECT_EQ(std::count_if(addresses.begin(), addresses.end(), is_mapped), 2);
  const auto again = page_allocator().allocate(kSize);
  EXPECT_THAT(addresses, ::testing::Contains(again.get()));
}

TEST(PageAllocator, ServesLargeBlocksOfAnEngineAndNoSmallOnes) {
  const auto reserve = [](int64_t num_bytes) {
    return MemoryLayout().reserve(
        MemoryUse::kGradients, num_bytes, at::TensorOptions(at::kByte));
  };
  const auto is_ours = [](const at::Tensor& tensor) {
    return tensor.storage().allocator() == &page_allocator();
  };
  EXPECT_TRUE(is_ours(reserve(kSmallestPages)));
  EXPECT_FALSE(is_ours(reserve(kSmallestPages - 1)));
  const auto zeros = MemoryLayout().allocate(
      MemoryUse::kParameters, kSize / 4, at::TensorOptions(at::kFloat));
  EXPECT_TRUE(is_ours(zeros));
  EXPECT_EQ(zeros.count_nonzero().item<int64_t>(), 0);
}

TEST(PageAllocator, ReportsHowMuchItCouldNotAllocate) {
  EXPECT_THROW(
      page_allocator().allocate(std::size_t{1} << 60), c10::OutOfMemoryError);
}

} // namespace
} // namespace accelerate
