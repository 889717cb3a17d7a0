// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

/// The derivative of gelu(x).
template <bool kTanh>
__device__ float gelu_slope(float x) {
  if constexpr (kTanh) {
    constexpr float kScale = 0.7978845608028654f; // sqrt(2 / pi)
    constexpr float kCube = 0.044715f;
    const float square = x * x;
    const float u = kScale * (x + kCube * square * x);
    const float t = 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * u));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * kScale * (1.0f + 3.0f * kCube * square);
  } else {
    constexpr float kRootOfHalf = 0.7071067811865476f;
    constexpr float kDensity = 0.3989422804014327f; // 1 / sqrt(2 pi)
    return 0.5f * (1.0f + erff(x * kRootOfHalf)) +
           x * kDensity * __expf(-0.5f * x * x);
  }
}

enum class Slope { kNone, kErf, kTanh };

/// A pack of columns for each lane; each warp of a block takes rows of its own.
template <class T, Slope kSlope>
__global__ void __launch_bounds__(kRowThreads)
    sum_packs(SummedRows rows, Pack<T>* result, float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[kRowWarps][kSize][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t num_packs = rows.num_columns / kSize;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float total[kSize] = {};
  if (place < num_packs) {
    const int64_t step = static_cast<int64_t>(gridDim.y) * kRowWarps;
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kRowWarps + warp;
         row < rows.num_rows;
         row += step) {
      const int64_t at = row * num_packs + place;
      Pack<T> own = load<T>(rows.values, at);
      if constexpr (kSlope == Slope::kNone) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          total[j] += as_float(own.values[j]);
        }
      } else {
        const Pack<T> inner = load<T>(rows.inner, at);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const float x =
              as_float(own.values[j]) *
              gelu_slope<kSlope == Slope::kTanh>(as_float(inner.values[j]));
          total[j] += x;
          own.values[j] = as<T>(x);
        }
        result[at] = own;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    shared[warp][j][lane] = total[j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSize * kWarp;
       i += kRowThreads) {
    const int64_t column =
        (static_cast<int64_t>(blockIdx.x) * kWarp + i / kSize) * kSize +
        i % kSize;
    if (column < rows.num_columns) {
      float sum = 0.0f;
      for (int w = 0; w < kRowWarps; ++w) {
        sum += shared[w][i % kSize][i / kSize];
      }
      partial[blockIdx.y * rows.num_columns + column] = sum;
    }
  }
}

} // namespace

int64_t column_sum_blocks(Number type, int64_t num_rows, int64_t num_columns) {
  constexpr int64_t kMostBlocks = 1056; // Eight for each part of a large GPU.
  constexpr int64_t kFewestRows = 8;    // Of a warp.
  const int64_t size = type == Number::kFloat ? 4 : 8;
  const int64_t across = (num_columns / size + kWarp - 1) / kWarp;
  const int64_t rows = kRowWarps * kFewestRows;
  return std::max<int64_t>(
      1, std::min(kMostBlocks / across, (num_rows + rows - 1) / rows));
}

const char* sum_columns(
    const SummedRows& rows,
    void* result,
    float* partial,
    void* sums,
    void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const auto blocks = static_cast<unsigned>(
      column_sum_blocks(rows.type, rows.num_rows, rows.num_columns));
  const auto columns = static_cast<int>(rows.num_columns);
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    const dim3 grid(
        static_cast<unsigned>(packs_per_lane<T>(rows.num_columns)), blocks);
    auto* const packs = static_cast<Pack<T>*>(result);
    if (rows.inner == nullptr) {
      sum_packs<T, Slope::kNone>
          <<<grid, kRowThreads, 0, on>>>(rows, packs, partial);
    } else if (rows.is_tanh) {
      sum_packs<T, Slope::kTanh>
          <<<grid, kRowThreads, 0, on>>>(rows, packs, partial);
    } else {
      sum_packs<T, Slope::kErf>
          <<<grid, kRowThreads, 0, on>>>(rows, packs, partial);
    }
    add_partials<T>
        <<<static_cast<unsigned>((columns + kWarp - 1) / kWarp),
           kRowThreads,
           0,
           on>>>(
            partial, static_cast<int>(blocks), columns, static_cast<T*>(sums));
  });
  return outcome();
}

} // namespace accelerate::cuda_kernels
