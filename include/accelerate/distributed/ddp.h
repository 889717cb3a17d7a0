// SPDX-License-Identifier: Apache-2.0
// Options of distributed data parallelism.
#pragma once

#include <cstdint>

#include "accelerate/export.h"

namespace accelerate {

/// How gradients are compressed for communication.
enum class Compression {
  /// Gradients are sent uncompressed.
  kNone,
  /// Gradients are rounded to 16 bits, which halves the traffic. Each gradient
  /// is divided by the number of ranks before it is sent.
  kFp16,
  kBf16,
  /// Matrices are sent as products of two thin matrices (`PowerSgdOptions`).
  kPowerSgd,
};

/// PowerSGD (https://arxiv.org/abs/1905.13727), with the names, defaults and
/// arithmetic of PyTorch's `powerSGD_hook`. A gradient of n rows and m columns
/// is sent as (n + m) * r elements, where r is `matrix_approximation_rank`. The
/// parameters of all ranks stay bit-identical. The approximation error is added
/// to the next step's gradient.
struct ACCELERATE_API PowerSgdOptions {
  /// A larger value is more accurate but sends more data. Typical values are 1,
  /// 2 and 4.
  int64_t matrix_approximation_rank = 1;
  /// The number of steps at the start whose gradients are sent uncompressed. It
  /// must be at least 2 with error feedback or warm start, because the first
  /// step changes the bucket layout.
  int64_t start_powerSGD_iter = 1000;
  /// Compress a matrix only if this reduces its size by more than this factor.
  /// Other gradients, such as those of biases, are sent uncompressed.
  double min_compression_rate = 2;
  /// Add the error of each step to the gradient of the next step.
  bool use_error_feedback = true;
  /// Start from the factors of the previous step instead of random ones.
  bool warm_start = true;
  /// A value that is added to column norms, so that columns of zeros do not
  /// cause a division by zero.
  double orthogonalization_epsilon = 0;
  uint32_t random_seed = 0;
};

/// How gradients are averaged over ranks during the backward pass. The names
/// are PyTorch's.
struct ACCELERATE_API DdpOptions {
  /// Broadcast rank 0's buffers (e.g. running means) before a forward pass.
  bool broadcast_buffers = true;
  /// The size of the gradient buckets in MiB. The first bucket is smaller (1
  /// MiB), so that communication starts early.
  int64_t bucket_cap_mb = 25;
  /// Allow steps in which some parameters get no gradient. This costs one
  /// traversal of the autograd graph per step.
  bool find_unused_parameters = false;
  /// Store gradients in the buckets, which saves a copy and the memory for a
  /// second set of gradients. Gradients must then not be detached in place.
  bool gradient_as_bucket_view = true;
  /// Promise that the same parameters get gradients in every step.
  bool static_graph = false;
  Compression compression = Compression::kNone;
  PowerSgdOptions power_sgd = {};
};

} // namespace accelerate
