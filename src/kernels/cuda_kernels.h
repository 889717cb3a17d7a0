// SPDX-License-Identifier: Apache-2.0
// The border between code that nvcc compiles and code that knows tensors. No
// header of torch's or CUDA's, so that both compilers read it.
#pragma once

#include <cstdint>

namespace accelerate::cuda_kernels {

enum class Number { kFloat, kHalf, kBFloat16 };

/// Every launch returns null, or what CUDA says is wrong. `stream` is a
/// cudaStream_t.
struct LogitRows {
  Number type;
  /// Each row begins at a multiple of 16 bytes.
  const void* logits;
  const int64_t* labels;
  int64_t num_rows;
  /// Columns that count, and numbers from one row to the next.
  int64_t num_classes;
  int64_t row_stride;
  int64_t ignored;
};

/// The loss of each row and the logarithm of its sum of exponentials.
const char* cross_entropy_forward(
    const LogitRows& rows,
    float* losses,
    float* log_sums,
    void* stream);

/// `gradient` has `row_stride` columns; those behind the classes become 0.
const char* cross_entropy_backward(
    const LogitRows& rows,
    const float* log_sums,
    const float* factor,
    void* gradient,
    void* stream);

} // namespace accelerate::cuda_kernels
