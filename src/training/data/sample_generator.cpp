// SPDX-License-Identifier: Apache-2.0
// Random generators of samples. They depend only on seed, epoch and index.
#include <ATen/CPUGeneratorImpl.h>

#include <utility>

#include "accelerate/datasets.h"
#include "accelerate/detail/batch_source.h"
#include "accelerate/error.h"

namespace accelerate {
namespace {

thread_local detail::ReadingScope* current_reading = nullptr;

// SplitMix64's finalizer. It decorrelates consecutive numbers, which is
// required for seeds of mt19937.
uint64_t scattered(uint64_t number) {
  number += 0x9E3779B97F4A7C15ULL;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9ULL;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EBULL;
  return number ^ (number >> 31);
}

} // namespace

namespace detail {

ReadingScope::ReadingScope(SampleSeed seed)
    : seed_(seed), outer_(std::exchange(current_reading, this)) {}

ReadingScope::~ReadingScope() {
  current_reading = outer_;
}

void ReadingScope::begin(int64_t index) {
  const uint64_t of_epoch =
      scattered(scattered(seed_.seed) ^ static_cast<uint64_t>(seed_.epoch));
  unused_seed_ = scattered(of_epoch ^ static_cast<uint64_t>(index));
}

at::Generator& ReadingScope::generator() {
  if (!generator_.defined()) {
    generator_ = at::detail::createCPUGenerator();
  }
  if (unused_seed_) {
    generator_.set_current_seed(*std::exchange(unused_seed_, std::nullopt));
  }
  return generator_;
}

} // namespace detail

at::Generator& sample_generator() {
  if (current_reading == nullptr) {
    throw UsageError(
        "[sample_generator] This thread is not reading a sample for a loader. "
        "Call sample_generator() inside a dataset's get(), or create your own "
        "generator");
  }
  return current_reading->generator();
}

} // namespace accelerate
