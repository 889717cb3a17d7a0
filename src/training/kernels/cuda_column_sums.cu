// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

/// The cumulative distribution and the density of the normal distribution at x.
struct Normal {
  float share;
  float density;
};
template <class T>
__device__ Normal normal_at(float x) {
  constexpr float kRootOfHalf = 0.7071067811865476f;
  constexpr float kDensity = 0.3989422804014327f; // 1 / sqrt(2 pi)
  const float power = __expf(-0.5f * x * x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    // Abramowitz and Stegun 7.1.26. Its error of 1.5e-7 is below the precision
    // of these dtypes. `erff` takes twice as long, which is longer than the
    // memory accesses.
    const float t =
        __fdividef(1.0f, 1.0f + 0.3275911f * kRootOfHalf * fabsf(x));
    const float sum =
        ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t -
          0.284496736f) *
             t +
         0.254829592f) *
        t;
    const float beyond = 0.5f * sum * power;
    return {x < 0.0f ? beyond : 1.0f - beyond, kDensity * power};
  } else {
    return {0.5f * (1.0f + erff(x * kRootOfHalf)), kDensity * power};
  }
}

template <class T>
__device__ float gelu(float x) {
  return x * normal_at<T>(x).share;
}

/// The derivative of gelu(x).
template <class T, bool kTanh>
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
    const Normal normal = normal_at<T>(x);
    return normal.share + x * normal.density;
  }
}

enum class Slope { kNone, kErf, kTanh };

/// A pack of columns per lane. Each warp of a block processes its own rows.
template <class T, Slope kSlope>
__global__ void __launch_bounds__(kRowThreads)
    sum_packs(SummedRows rows, Pack<T>* result, float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float shared[kRowWarps][kSize][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t num_packs = rows.num_columns / kSize;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float total[kSize] = {};
  if (index < num_packs) {
    constexpr bool kHasSlope = kSlope != Slope::kNone;
    const int64_t step = static_cast<int64_t>(gridDim.y) * kRowWarps;
    int64_t row = static_cast<int64_t>(blockIdx.y) * kRowWarps + warp;
    // Load the next row before this one is computed.
    bool is_there = row < rows.num_rows;
    Pack<T> next = load_if<T>(is_there, rows.values, row * num_packs + index);
    Pack<T> next_inner =
        load_if<T>(kHasSlope && is_there, rows.inner, row * num_packs + index);
    for (; row < rows.num_rows; row += step) {
      const int64_t at = row * num_packs + index;
      Pack<T> own = next;
      const Pack<T> inner = next_inner;
      const int64_t after = at + step * num_packs;
      is_there = row + step < rows.num_rows;
      next = load_if<T>(is_there, rows.values, after);
      next_inner = load_if<T>(kHasSlope && is_there, rows.inner, after);
      if constexpr (!kHasSlope) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          total[j] += as_float(own.values[j]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const float x =
              as_float(own.values[j]) *
              gelu_slope<T, kSlope == Slope::kTanh>(as_float(inner.values[j]));
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

/// The number of packs that a thread loads before it computes.
constexpr int kGeluPacks = 4;

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    gelu_packs(const void* inner, int64_t num_packs, Pack<T>* result) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kRowThreads * kGeluPacks + threadIdx.x;
  Pack<T> own[kGeluPacks];
#pragma unroll
  for (int k = 0; k < kGeluPacks; ++k) {
    const int64_t at = first + k * kRowThreads;
    own[k] = load_if<T>(at < num_packs, inner, at);
  }
#pragma unroll
  for (int k = 0; k < kGeluPacks; ++k) {
    const int64_t at = first + k * kRowThreads;
    if (at < num_packs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        own[k].values[j] = as<T>(gelu<T>(as_float(own[k].values[j])));
      }
      result[at] = own[k];
    }
  }
}

} // namespace

const char* gelu(
    Number type,
    const void* inner,
    int64_t num_elements,
    void* result,
    void* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const int64_t num_packs = num_elements / Pack<T>::kSize;
    constexpr int64_t kBlockPacks = kRowThreads * kGeluPacks;
    gelu_packs<T>
        <<<static_cast<unsigned>((num_packs + kBlockPacks - 1) / kBlockPacks),
           kRowThreads,
           0,
           static_cast<cudaStream_t>(stream)>>>(
            inner, num_packs, static_cast<Pack<T>*>(result));
  });
  return outcome();
}

int64_t column_sum_blocks(Number type, int64_t num_rows, int64_t num_columns) {
  constexpr int64_t kMostBlocks = 1056; // eight per SM of a large GPU
  constexpr int64_t kFewestRows = 8;    // per warp
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
