// SPDX-License-Identifier: Apache-2.0
// Custom allocators for parameters and gradients.
#pragma once

#include "accelerate/export.h"

namespace c10 {
struct Allocator;
} // namespace c10

namespace accelerate {

enum class MemoryUse { kParameters, kGradients };

/// Allocators that replace torch's, for example for shared, pinned or
/// registered memory. They must allocate on the model's device and outlive
/// everything that is created with them.
struct ACCELERATE_API MemoryOptions {
  /// The allocator of flat parameters, for engines that choose the memory
  /// layout of parameters.
  c10::Allocator* parameters = nullptr;
  /// The allocator of gradient buckets. These buffers are also used for
  /// communication.
  c10::Allocator* gradients = nullptr;
};

} // namespace accelerate
