// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda_kernels.h"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ float as_float(float x) {
  return x;
}
__device__ float as_float(__half x) {
  return __half2float(x);
}
__device__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ T as(float x);
template <>
__device__ float as<float>(float x) {
  return x;
}
template <>
__device__ __half as<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __nv_bfloat16 as<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// 16 bytes, which a thread reads and writes at once.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

/// The greatest of some numbers, and the sum of their exponentials less it.
struct SoftmaxSum {
  float greatest = -INFINITY;
  float sum = 0.0f;

  __device__ void add(const SoftmaxSum& other) {
    const float top = fmaxf(greatest, other.greatest);
    if (top == -INFINITY) {
      return;
    }
    sum =
        sum * __expf(greatest - top) + other.sum * __expf(other.greatest - top);
    greatest = top;
  }
};

__device__ SoftmaxSum over_block(SoftmaxSum own) {
  __shared__ SoftmaxSum parts[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    SoftmaxSum other;
    other.greatest = __shfl_down_sync(kAllLanes, own.greatest, offset);
    other.sum = __shfl_down_sync(kAllLanes, own.sum, offset);
    own.add(other);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    parts[warp] = own;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / kWarp; ++i) {
      own.add(parts[i]);
    }
  }
  return own; // Of all in thread 0.
}

/// As the operator of torch: a label that is none ends the program.
__device__ void check_label(int64_t label, int64_t num_classes) {
  if (label < 0 || label >= num_classes) {
    __trap();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_rows(LogitRows rows, float* losses, float* log_sums) {
  const int64_t row = blockIdx.x;
  const int64_t label = rows.labels[row];
  if (label == rows.ignored) {
    if (threadIdx.x == 0) {
      losses[row] = 0.0f;
      log_sums[row] = 0.0f;
    }
    return;
  }
  check_label(label, rows.num_classes);
  const T* logits = static_cast<const T*>(rows.logits) + row * rows.row_stride;
  const auto* packs = reinterpret_cast<const Pack<T>*>(logits);
  constexpr int kSize = Pack<T>::kSize;
  const int64_t num_packs = (rows.num_classes + kSize - 1) / kSize;
  SoftmaxSum own;
  for (int64_t i = threadIdx.x; i < num_packs; i += kThreads) {
    const Pack<T> pack = packs[i];
    float values[kSize];
    SoftmaxSum here;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const bool counts = i * kSize + j < rows.num_classes;
      values[j] = counts ? as_float(pack.values[j]) : -INFINITY;
      here.greatest = fmaxf(here.greatest, values[j]);
    }
    if (here.greatest == -INFINITY) {
      continue;
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      here.sum += __expf(values[j] - here.greatest);
    }
    own.add(here);
  }
  own = over_block(own);
  if (threadIdx.x == 0) {
    const float log_sum = own.greatest + logf(own.sum);
    log_sums[row] = log_sum;
    losses[row] = log_sum - as_float(logits[label]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) backward_rows(
    LogitRows rows,
    const float* log_sums,
    const float* factor,
    T* gradient) {
  const int64_t row = blockIdx.x;
  const int64_t label = rows.labels[row];
  const bool is_ignored = label == rows.ignored;
  const float scale = is_ignored ? 0.0f : *factor;
  const float log_sum = log_sums[row];
  constexpr int kSize = Pack<T>::kSize;
  const auto* packs = reinterpret_cast<const Pack<T>*>(
      static_cast<const T*>(rows.logits) + row * rows.row_stride);
  auto* results = reinterpret_cast<Pack<T>*>(gradient + row * rows.row_stride);
  for (int64_t i = threadIdx.x; i < rows.row_stride / kSize; i += kThreads) {
    Pack<T> pack = {};
    if (!is_ignored) {
      pack = packs[i];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int64_t column = i * kSize + j;
        const float share = __expf(as_float(pack.values[j]) - log_sum);
        const float value = (column == label ? share - 1.0f : share) * scale;
        pack.values[j] = as<T>(column < rows.num_classes ? value : 0.0f);
      }
    }
    results[i] = pack;
  }
}

const char* outcome() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class T>
void launch_forward(
    const LogitRows& rows,
    float* losses,
    float* log_sums,
    cudaStream_t stream) {
  forward_rows<T>
      <<<static_cast<unsigned>(rows.num_rows), kThreads, 0, stream>>>(
          rows, losses, log_sums);
}

template <class T>
void launch_backward(
    const LogitRows& rows,
    const float* log_sums,
    const float* factor,
    void* gradient,
    cudaStream_t stream) {
  backward_rows<T>
      <<<static_cast<unsigned>(rows.num_rows), kThreads, 0, stream>>>(
          rows, log_sums, factor, static_cast<T*>(gradient));
}

} // namespace

const char* cross_entropy_forward(
    const LogitRows& rows,
    float* losses,
    float* log_sums,
    void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  switch (rows.type) {
    case Number::kFloat:
      launch_forward<float>(rows, losses, log_sums, on);
      break;
    case Number::kHalf:
      launch_forward<__half>(rows, losses, log_sums, on);
      break;
    case Number::kBFloat16:
      launch_forward<__nv_bfloat16>(rows, losses, log_sums, on);
      break;
  }
  return outcome();
}

const char* cross_entropy_backward(
    const LogitRows& rows,
    const float* log_sums,
    const float* factor,
    void* gradient,
    void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  switch (rows.type) {
    case Number::kFloat:
      launch_backward<float>(rows, log_sums, factor, gradient, on);
      break;
    case Number::kHalf:
      launch_backward<__half>(rows, log_sums, factor, gradient, on);
      break;
    case Number::kBFloat16:
      launch_backward<__nv_bfloat16>(rows, log_sums, factor, gradient, on);
      break;
  }
  return outcome();
}

} // namespace accelerate::cuda_kernels
