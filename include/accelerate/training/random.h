// SPDX-License-Identifier: Apache-2.0
// Seeding of random number generators.
#pragma once

#include <cstdint>

#include "accelerate/export.h"

namespace accelerate {

struct ACCELERATE_API SeedOptions {
  /// Added to the seed. Pass the rank to get different random numbers on each
  /// process.
  uint64_t offset = 0;
  /// Also enable torch's deterministic algorithms. They are slower, and
  /// operators without such an algorithm throw.
  bool deterministic = false;
};

/// Seeds torch's default generators of the CPU and of every GPU. Threads of one
/// process share the CPU's generator.
///
///     accelerate::set_seed(42);
///     const auto rank = static_cast<uint64_t>(accelerator.process_index());
///     accelerate::set_seed(42, {.offset = rank});
ACCELERATE_API void set_seed(uint64_t seed, SeedOptions options = {});

} // namespace accelerate
