// SPDX-License-Identifier: Apache-2.0
// Whose memory parameters and gradients lie in.
#pragma once

#include "accelerate/export.h"

namespace c10 {
struct Allocator;
} // namespace c10

namespace accelerate {

enum class MemoryUse { kParameters, kGradients };

/// Allocators in the place of torch's own, say of shared, pinned or registered
/// memory. They must give memory of the device that the model is on, and
/// outlive everything that was made with them.
struct ACCELERATE_API MemoryOptions {
  /// Flat parameters of engines that lay parameters out themselves.
  c10::Allocator* parameters = nullptr;
  /// The buckets in which gradients live and travel.
  c10::Allocator* gradients = nullptr;
};

} // namespace accelerate
