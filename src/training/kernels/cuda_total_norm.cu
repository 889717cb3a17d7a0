// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kThreads = 512;
/// The number of elements per block. Each block writes one sum.
constexpr int64_t kChunk = 64 * 1024;
/// A launch passes its tensors as kernel arguments, which are limited to 4 KB.
constexpr int kMostTensors = 144;

struct NormLaunch {
  int num_tensors;
  float* sums;
  /// The first block of each tensor.
  int first_block[kMostTensors];
  NormTensor tensors[kMostTensors];
};
static_assert(sizeof(NormLaunch) <= 4096, "arguments of a kernel");

/// The sum of this thread's share of the squares of `values`.
template <class T>
__device__ float squares(const T* values, int64_t begin, int64_t end) {
  constexpr int kSize = Pack<T>::kSize;
  // One accumulator per element of a pack, so that additions do not depend on
  // each other.
  float sums[kSize] = {};
  int64_t done = begin;
  if (is_aligned(values, sizeof(Pack<T>))) {
    const int64_t last = begin + (end - begin) / kSize * kSize;
#pragma unroll 4
    for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kSize;
         i < last;
         i += kSize * kThreads) {
      const auto pack = load<T>(values, i / kSize);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float value = as_float(pack.values[j]);
        sums[j] += value * value;
      }
    }
    done = last;
  }
  for (int64_t i = done + threadIdx.x; i < end; i += kThreads) {
    const float value = as_float(values[i]);
    sums[0] += value * value;
  }
#pragma unroll
  for (int j = 1; j < kSize; ++j) {
    sums[0] += sums[j];
  }
  return sums[0];
}

__global__ void __launch_bounds__(kThreads) square_chunks(NormLaunch launch) {
  const int tensor_index = tensor_of_block(launch);
  const NormTensor& tensor = launch.tensors[tensor_index];
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) - launch.first_block[tensor_index]) *
      kChunk;
  const int64_t end = min(begin + kChunk, tensor.size);
  float sum = 0.0f;
  switch (tensor.type) {
    case Number::kFloat:
      sum = squares(static_cast<const float*>(tensor.values), begin, end);
      break;
    case Number::kHalf:
      sum = squares(static_cast<const __half*>(tensor.values), begin, end);
      break;
    case Number::kBFloat16:
      sum =
          squares(static_cast<const __nv_bfloat16*>(tensor.values), begin, end);
      break;
  }
  sum = over_warp(sum);
  __shared__ float shared[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / kWarp; ++i) {
      sum += shared[i];
    }
    launch.sums[blockIdx.x] = sum;
  }
}

/// A single block, because there are only thousands of sums.
__global__ void __launch_bounds__(kThreads)
    root_of_sum(const float* sums, int64_t num_sums, float* norm) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < num_sums; i += kThreads) {
    sum += sums[i];
  }
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *norm = static_cast<float>(sqrt(shared[0]));
  }
}

int64_t num_chunks(const NormTensor& tensor) {
  return (tensor.size + kChunk - 1) / kChunk;
}

} // namespace

int64_t total_norm_blocks(const NormTensor* tensors, int64_t num_tensors) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < num_tensors; ++i) {
    blocks += num_chunks(tensors[i]);
  }
  return blocks;
}

const char* total_norm(
    const NormTensor* tensors,
    int64_t num_tensors,
    float* sums,
    float* norm,
    void* stream) {
  int64_t next = 0;
  int64_t num_sums = 0;
  while (next < num_tensors) {
    NormLaunch launch = {};
    launch.sums = sums + num_sums;
    int64_t num_blocks = 0;
    for (; next < num_tensors && launch.num_tensors < kMostTensors; ++next) {
      launch.first_block[launch.num_tensors] = static_cast<int>(num_blocks);
      launch.tensors[launch.num_tensors++] = tensors[next];
      num_blocks += num_chunks(tensors[next]);
    }
    if (num_blocks == 0) {
      continue;
    }
    square_chunks<<<
        static_cast<unsigned>(num_blocks),
        kThreads,
        0,
        static_cast<cudaStream_t>(stream)>>>(launch);
    if (const char* error = outcome(); error != nullptr) {
      return error;
    }
    num_sums += num_blocks;
  }
  root_of_sum<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      sums, num_sums, norm);
  return outcome();
}

} // namespace accelerate::cuda_kernels
