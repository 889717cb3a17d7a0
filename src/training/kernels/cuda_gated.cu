// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

/// Sums over a block. `sums` may be used once between two barriers.
__device__ float over_block(float x, float* sums) {
  x = over_warp(x);
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    sums[threadIdx.x / kWarp] = x;
  }
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < num_warps; ++w) {
    total += sums[w];
  }
  return total;
}

constexpr int kMostThreads = 1024;

/// One block per row, one pack per thread.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_rows(RmsNormRows rows, T* sum, T* normed, float* roots) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float sums[kMostThreads / kWarp];
  const int64_t row = blockIdx.x;
  const int index = static_cast<int>(threadIdx.x);
  const int num_packs = static_cast<int>(rows.num_channels) / kSize;
  const bool is_in = index < num_packs;
  const int64_t at = row * num_packs + index;
  const Pack<T> own = load_if<T>(is_in, rows.residual, at);
  const Pack<T> branch =
      load_if<T>(is_in && rows.branch != nullptr, rows.branch, at);
  const Pack<T> weight = load_if<T>(is_in, rows.weight, index);
  float values[kSize];
  float squares = 0.0f;
  Pack<T> result;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    result.values[j] =
        as<T>(as_float(own.values[j]) + as_float(branch.values[j]));
    values[j] = as_float(result.values[j]);
    squares += values[j] * values[j];
  }
  if (is_in && rows.branch != nullptr) {
    reinterpret_cast<Pack<T>*>(sum)[at] = result;
  }
  const float root = rsqrtf(
      over_block(squares, sums) / static_cast<float>(rows.num_channels) +
      rows.epsilon);
  if (index == 0) {
    roots[row] = root;
  }
  if (is_in) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      result.values[j] = as<T>(values[j] * root * as_float(weight.values[j]));
    }
    reinterpret_cast<Pack<T>*>(normed)[at] = result;
  }
}

/// Several rows per block. `partial`: blocks x channels.
template <class T>
__global__ void __launch_bounds__(kMostThreads) rms_norm_gradients(
    RmsNormRows rows,
    const float* roots,
    const void* of_sum,
    const void* of_normed,
    T* result,
    float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  // Indexed by the parity of the row, because a warp may be one row ahead of
  // another.
  __shared__ float sums[2][kMostThreads / kWarp];
  const int index = static_cast<int>(threadIdx.x);
  const int num_packs = static_cast<int>(rows.num_channels) / kSize;
  const bool is_in = index < num_packs;
  const Pack<T> weight = load_if<T>(is_in, rows.weight, index);
  float of_weight[kSize] = {};
  int parity = 0;
  for (int64_t row = blockIdx.x; row < rows.num_rows;
       row += gridDim.x, parity ^= 1) {
    const int64_t at = row * num_packs + index;
    const Pack<T> given = load_if<T>(is_in, of_normed, at);
    const Pack<T> value = load_if<T>(is_in, rows.residual, at);
    const Pack<T> beside = load_if<T>(is_in && of_sum != nullptr, of_sum, at);
    const float root = roots[row];
    float dot = 0.0f;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float exact = as_float(value.values[j]) * root;
      const float g = as_float(given.values[j]);
      of_weight[j] += g * exact;
      dot += g * as_float(weight.values[j]) * exact;
    }
    dot = over_block(dot, sums[parity]) / static_cast<float>(rows.num_channels);
    Pack<T> whole;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float exact = as_float(value.values[j]) * root;
      const float g = as_float(given.values[j]) * as_float(weight.values[j]);
      whole.values[j] =
          as<T>(as_float(beside.values[j]) + root * (g - exact * dot));
    }
    if (is_in) {
      reinterpret_cast<Pack<T>*>(result)[at] = whole;
    }
  }
  if (is_in) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      partial[blockIdx.x * rows.num_channels + index * kSize + j] =
          of_weight[j];
    }
  }
}

constexpr int kThreads = 256;

/// Each thread processes a pack of the first half of a head and the matching
/// pack of the second half.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_heads(RotatedHeads heads, T* result) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t half = heads.head_channels / 2 / kSize;
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t head = thread / half;
  if (head >= heads.num_tokens * heads.num_heads) {
    return;
  }
  const int64_t index = thread % half;
  const int64_t token = head / heads.num_heads;
  const int64_t angle =
      (token % heads.num_angles) * half * kSize + index * kSize;
  const int64_t at = head * 2 * half + index;
  const Pack<T> first = load<T>(heads.values, at);
  const Pack<T> second = load<T>(heads.values, at + half);
  const float sign = heads.is_inverse ? -1.0f : 1.0f;
  Pack<T> of_first;
  Pack<T> of_second;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const float c = heads.cos[angle + j];
    const float s = heads.sin[angle + j] * sign;
    const float x = as_float(first.values[j]);
    const float y = as_float(second.values[j]);
    of_first.values[j] = as<T>(x * c - y * s);
    of_second.values[j] = as<T>(y * c + x * s);
  }
  auto* const packs = reinterpret_cast<Pack<T>*>(result);
  packs[at] = of_first;
  packs[at + half] = of_second;
}

__device__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

template <class T>
__global__ void __launch_bounds__(kThreads) swiglu_packs(
    const void* gate,
    const void* up,
    T* result,
    int64_t num_packs) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= num_packs) {
    return;
  }
  Pack<T> own = load<T>(gate, at);
  const Pack<T> other = load<T>(up, at);
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    const float x = as_float(own.values[j]);
    own.values[j] = as<T>(x * sigmoid(x) * as_float(other.values[j]));
  }
  reinterpret_cast<Pack<T>*>(result)[at] = own;
}

template <class T>
__global__ void __launch_bounds__(kThreads) swiglu_gradient_packs(
    const void* of_result,
    const void* gate,
    const void* up,
    T* of_gate,
    T* of_up,
    int64_t num_packs) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= num_packs) {
    return;
  }
  const Pack<T> given = load<T>(of_result, at);
  Pack<T> own = load<T>(gate, at);
  Pack<T> other = load<T>(up, at);
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    const float g = as_float(given.values[j]);
    const float x = as_float(own.values[j]);
    const float share = sigmoid(x);
    const float y = as_float(other.values[j]);
    own.values[j] = as<T>(g * y * share * (1.0f + x * (1.0f - share)));
    other.values[j] = as<T>(g * x * share);
  }
  reinterpret_cast<Pack<T>*>(of_gate)[at] = own;
  reinterpret_cast<Pack<T>*>(of_up)[at] = other;
}

unsigned row_threads(Number type, int64_t num_channels) {
  const int64_t packs = num_channels / (type == Number::kFloat ? 4 : 8);
  return static_cast<unsigned>((packs + kWarp - 1) / kWarp * kWarp);
}

unsigned blocks_for(int64_t num_threads) {
  return static_cast<unsigned>((num_threads + kThreads - 1) / kThreads);
}

} // namespace

bool fits_rms_norm(Number type, int64_t num_channels) {
  const int64_t size = type == Number::kFloat ? 4 : 8;
  return num_channels > 0 && num_channels % size == 0 &&
         num_channels <= size * kMostThreads;
}

const char* rms_norm_forward(
    const RmsNormRows& rows,
    void* sum,
    void* normed,
    float* reciprocal_roots,
    void* stream) {
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_rows<T>
        <<<static_cast<unsigned>(rows.num_rows),
           row_threads(rows.type, rows.num_channels),
           0,
           static_cast<cudaStream_t>(stream)>>>(
            rows,
            static_cast<T*>(sum),
            static_cast<T*>(normed),
            reciprocal_roots);
  });
  return outcome();
}

int64_t rms_norm_blocks(int64_t num_rows) {
  constexpr int64_t kMostBlocks = 528; // four per SM of a large GPU
  return std::min(num_rows, kMostBlocks);
}

const char* rms_norm_backward(
    const RmsNormRows& rows,
    const float* reciprocal_roots,
    const void* of_sum,
    const void* of_normed,
    void* of_residual,
    float* partial,
    void* of_weight,
    void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const auto blocks = static_cast<unsigned>(rms_norm_blocks(rows.num_rows));
  const auto channels = static_cast<int>(rows.num_channels);
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    rms_norm_gradients<T>
        <<<blocks, row_threads(rows.type, rows.num_channels), 0, on>>>(
            rows,
            reciprocal_roots,
            of_sum,
            of_normed,
            static_cast<T*>(of_residual),
            partial);
    add_partials<T>
        <<<static_cast<unsigned>((channels + kWarp - 1) / kWarp),
           kRowThreads,
           0,
           on>>>(
            partial,
            static_cast<int>(blocks),
            channels,
            static_cast<T*>(of_weight));
  });
  return outcome();
}

const char* rotate(const RotatedHeads& heads, void* result, void* stream) {
  with_type(heads.type, [&](auto zero) {
    using T = decltype(zero);
    const int64_t packs = heads.num_tokens * heads.num_heads *
                          heads.head_channels / 2 / Pack<T>::kSize;
    rotate_heads<T>
        <<<blocks_for(packs), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            heads, static_cast<T*>(result));
  });
  return outcome();
}

const char* swiglu(
    Number type,
    const void* gate,
    const void* up,
    void* result,
    int64_t num_values,
    void* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const int64_t packs = num_values / Pack<T>::kSize;
    swiglu_packs<T>
        <<<blocks_for(packs), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            gate, up, static_cast<T*>(result), packs);
  });
  return outcome();
}

const char* swiglu_backward(
    Number type,
    const void* of_result,
    const void* gate,
    const void* up,
    void* of_gate,
    void* of_up,
    int64_t num_values,
    void* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const int64_t packs = num_values / Pack<T>::kSize;
    swiglu_gradient_packs<T>
        <<<blocks_for(packs), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            of_result,
            gate,
            up,
            static_cast<T*>(of_gate),
            static_cast<T*>(of_up),
            packs);
  });
  return outcome();
}

} // namespace accelerate::cuda_kernels
