// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/memory.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// The sizes that are tried if more than `fits` is too much.
template <class Fail>
std::vector<int64_t> tried(
    int64_t start,
    int64_t fits,
    Fail fail,
    const BatchSizeSearchOptions& options = {}) {
  std::vector<int64_t> sizes;
  const auto found = find_executable_batch_size(
      start,
      [&](int64_t size) {
        sizes.push_back(size);
        if (size > fits) {
          fail();
        }
        return size * 10;
      },
      options);
  EXPECT_EQ(found, sizes.back() * 10);
  return sizes;
}

// int(size * 0.9) each time, as Hugging Face's.
TEST(FindExecutableBatchSize, ShrinksByATenthUntilItFits) {
  const auto fail = [] { throw std::bad_alloc(); };
  EXPECT_THAT(tried(16, 16, fail), ElementsAre(16));
  EXPECT_THAT(tried(16, 9, fail), ElementsAre(16, 14, 12, 10, 9));
  EXPECT_THAT(
      tried(128, 20, fail, {[](int64_t size) { return size / 2; }}),
      ElementsAre(128, 64, 32, 16));
}

TEST(FindExecutableBatchSize, RecognisesOutOfMemoryErrors) {
  tried(2, 1, [] { throw std::bad_alloc(); });
  tried(2, 1, [] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA: none left");
  });
  tried(2, 1, [] { throw std::runtime_error("HIP out of memory. Tried"); });
  // The CPU's allocator itself: 4 EB.
  tried(2, 1, [] { torch::empty({int64_t{1} << 60}); });
}

TEST(FindExecutableBatchSize, PassesOtherExceptionsThrough) {
  EXPECT_THAT(
      [] { tried(8, 1, [] { throw std::runtime_error("a bug"); }); },
      ThrowsMessage<std::runtime_error>("a bug"));
}

TEST(FindExecutableBatchSize, ReportsThatNoSizeFits) {
  const auto fail = [] { throw std::bad_alloc(); };
  EXPECT_THAT(
      [&] { tried(8, 0, fail); },
      ThrowsMessage<UsageError>(
          HasSubstr("No executable batch size found, reached zero")));
  EXPECT_THAT(
      [&] { tried(0, 1, fail); },
      ThrowsMessage<UsageError>(HasSubstr("batch_size is 0")));
  EXPECT_THAT(
      [&] { tried(8, 1, fail, {[](int64_t size) { return size; }}); },
      ThrowsMessage<UsageError>(HasSubstr("returned 8 for 8")));
}

} // namespace
} // namespace accelerate
