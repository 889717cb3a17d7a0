// SPDX-License-Identifier: Apache-2.0
// Functions that kernels share. Each file that nvcc compiles has its own copy.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "training/kernels/cuda_kernels.h"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

inline __device__ float as_float(float x) {
  return x;
}
inline __device__ float as_float(__half x) {
  return __half2float(x);
}
inline __device__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ T as(float x);
template <>
inline __device__ float as<float>(float x) {
  return x;
}
template <>
inline __device__ __half as<__half>(float x) {
  return __float2half_rn(x);
}
template <>
inline __device__ __nv_bfloat16 as<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// 16 bytes, which a thread reads and writes at once.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

inline __device__ float over_warp(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

template <class T>
__device__ Pack<T> load(const void* base, int64_t pack) {
  return static_cast<const Pack<T>*>(base)[pack];
}

/// The pack, or zeros. Has no branch, so the thread does not wait for the value
/// until it uses it.
template <class T>
__device__ Pack<T> load_if(bool is_there, const void* base, int64_t pack) {
  union {
    Pack<T> pack;
    uint4 words;
  } own;
  const void* const at = static_cast<const Pack<T>*>(base) + pack;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=r"(own.words.x),
        "=r"(own.words.y),
        "=r"(own.words.z),
        "=r"(own.words.w)
      : "l"(at), "r"(static_cast<int>(is_there)));
  return own.pack;
}

/// The byte, or 255 if it is not there.
inline __device__ uint32_t
load_byte_if(bool is_there, const uint8_t* base, int64_t index) {
  uint32_t byte;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "mov.b32 %0, 255;\n"
      "@p ld.global.u8 %0, [%1];\n"
      "}"
      : "=r"(byte)
      : "l"(base + index), "r"(static_cast<int>(is_there)));
  return byte;
}

/// Warps per block of kernels that walk over rows.
constexpr int kRowWarps = 8;
constexpr int kRowThreads = kRowWarps * kWarp;

template <class T>
int packs_per_lane(int64_t num_channels) {
  return static_cast<int>((num_channels / Pack<T>::kSize + kWarp - 1) / kWarp);
}

/// Adds up the blocks of `partial`: 32 channels for each block of threads.
template <class T>
__global__ void __launch_bounds__(kRowThreads) add_partials(
    const float* partial,
    int blocks,
    int num_channels,
    T* result) {
  __shared__ float shared[kRowWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int channel = static_cast<int>(blockIdx.x) * kWarp + lane;
  const int64_t from =
      static_cast<int64_t>(blockIdx.y) * blocks * num_channels + channel;
  float total = 0.0f;
  if (channel < num_channels) {
    // Load several values at a time, because each load waits for memory.
#pragma unroll 8
    for (int b = warp; b < blocks; b += kRowWarps) {
      total += partial[from + static_cast<int64_t>(b) * num_channels];
    }
  }
  shared[warp][lane] = total;
  __syncthreads();
  if (warp == 0 && channel < num_channels) {
    for (int w = 1; w < kRowWarps; ++w) {
      total += shared[w][lane];
    }
    result[static_cast<int64_t>(blockIdx.y) * num_channels + channel] =
        as<T>(total);
  }
}

inline __device__ bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<size_t>(pointer) % bytes == 0;
}

/// The last tensor of the launch that begins at or before this block.
template <class Launch>
__device__ int tensor_of_block(const Launch& launch) {
  int low = 0;
  int high = launch.num_tensors - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (launch.first_block[middle] <= static_cast<int>(blockIdx.x)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <class Work>
void with_type(Number type, Work&& work) {
  switch (type) {
    case Number::kFloat:
      return work(float());
    case Number::kHalf:
      return work(__half());
    case Number::kBFloat16:
      return work(__nv_bfloat16());
  }
}

inline const char* outcome() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace
} // namespace accelerate::cuda_kernels
