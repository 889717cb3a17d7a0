// SPDX-License-Identifier: Apache-2.0
// Options of distributed data parallelism.
#pragma once

#include <cstdint>

#include "accelerate/export.h"

namespace accelerate {

/// How gradients are averaged over ranks while backward still runs. The names
/// are PyTorch's.
struct ACCELERATE_API DdpOptions {
  /// Rank 0's buffers (running means, say) go to all ranks before a forward.
  bool broadcast_buffers = true;
  /// Gradients travel in buckets of this many MiB. The first is 1 MiB, so that
  /// communication starts early.
  int64_t bucket_cap_mb = 25;
  /// Some parameters may get no gradient in a step. Costs a walk over the
  /// autograd graph per step.
  bool find_unused_parameters = false;
  /// Gradients live inside the buckets: saves a copy and the memory of all
  /// gradients. Gradients must then not be detached in place.
  bool gradient_as_bucket_view = true;
  /// The set of parameters that get gradients never changes.
  bool static_graph = false;
};

} // namespace accelerate
