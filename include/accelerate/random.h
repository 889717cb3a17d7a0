// SPDX-License-Identifier: Apache-2.0
// Seeds of the random number generators of this process.
#pragma once

#include <cstdint>

#include "accelerate/export.h"

namespace accelerate {

struct ACCELERATE_API SeedOptions {
  /// Added to the seed: pass the rank to give each process its own numbers.
  uint64_t offset = 0;
  /// Ask torch for deterministic algorithms too (slower; operators without one
  /// throw).
  bool deterministic = false;
};

/// Seeds torch's default generators of the CPU and of every GPU. Threads of
/// one process share the CPU's generator.
///
///     accelerate::set_seed(42);
///     const auto rank = static_cast<uint64_t>(accelerator.process_index());
///     accelerate::set_seed(42, {.offset = rank});
ACCELERATE_API void set_seed(uint64_t seed, SeedOptions options = {});

} // namespace accelerate
