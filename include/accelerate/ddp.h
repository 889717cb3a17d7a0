// SPDX-License-Identifier: Apache-2.0
// Options of distributed data parallelism.
#pragma once

#include <cstdint>

#include "accelerate/export.h"

namespace accelerate {

/// In which form gradients travel between ranks.
enum class Compression {
  /// As they are.
  kNone,
  /// Rounded to 16 bits on the way: half the bytes. Each gradient is divided by
  /// the number of ranks before it is sent.
  kFp16,
  kBf16,
  /// Matrices as products of two thin ones (`PowerSgdOptions`).
  kPowerSgd,
};

/// PowerSGD (https://arxiv.org/abs/1905.13727), with the names, defaults and
/// arithmetic of PyTorch's `powerSGD_hook`. A gradient of n rows and m columns
/// travels as (n + m) * rank numbers. Ranks stay bit-identical. What the
/// approximation leaves out is added to the next step's gradient.
struct ACCELERATE_API PowerSgdOptions {
  /// Higher is more exact and sends more; 1, 2 and 4 are usual.
  int64_t matrix_approximation_rank = 1;
  /// So many first steps are sent uncompressed. At least 2 with error feedback
  /// or warm start, as buckets are laid out anew after the first step.
  int64_t start_powerSGD_iter = 1000;
  /// A matrix is compressed where this many times its compressed size is less
  /// than its own; other gradients, such as biases, travel as they are.
  double min_compression_rate = 2;
  /// Add what was lost in a step to the next one.
  bool use_error_feedback = true;
  /// Begin from the factors of the previous step instead of random ones.
  bool warm_start = true;
  /// Added to column norms, for gradients with columns of zeros.
  double orthogonalization_epsilon = 0;
  uint32_t random_seed = 0;
};

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
  Compression compression = Compression::kNone;
  PowerSgdOptions power_sgd = {};
};

} // namespace accelerate
