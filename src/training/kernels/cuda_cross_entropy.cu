// SPDX-License-Identifier: Apache-2.0
#include <cuda_pipeline_primitives.h>

#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kThreads = 512;

/// 2 to the power of x, as accurate as `__expf`.
__device__ float exp2f_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// The maximum of some values, and the sum of their exponentials relative to
/// the maximum.
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

template <int kThreads>
__device__ SoftmaxSum over_block(SoftmaxSum own) {
  __shared__ SoftmaxSum sums[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    SoftmaxSum other;
    other.greatest = __shfl_down_sync(kAllLanes, own.greatest, offset);
    other.sum = __shfl_down_sync(kAllLanes, own.sum, offset);
    own.add(other);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    sums[warp] = own;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / kWarp; ++i) {
      own.add(sums[i]);
    }
  }
  return own; // complete only in thread 0
}

constexpr float kLog2OfE = 1.4426950408889634f;

/// Adds the columns of a pack that belong to classes.
template <class T>
__device__ void
add_pack(SoftmaxSum& own, const Pack<T>& pack, int64_t num_columns) {
  constexpr int kSize = Pack<T>::kSize;
  float values[kSize];
  float greatest = own.greatest;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    values[j] = as_float(pack.values[j]);
  }
  if (num_columns < kSize) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      values[j] = j < num_columns ? values[j] : -INFINITY;
    }
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    greatest = fmaxf(greatest, values[j]);
  }
  if (greatest == -INFINITY) {
    return;
  }
  // This is rare after the first packs.
  if (greatest > own.greatest) {
    own.sum *= __expf(own.greatest - greatest);
    own.greatest = greatest;
  }
  const float shift = -greatest * kLog2OfE;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    own.sum += exp2f_of(fmaf(values[j], kLog2OfE, shift));
  }
}

/// The gradient of a pack that starts at column `first`.
template <class T>
__device__ Pack<T> gradient_of(
    Pack<T> pack,
    const LogitRows& rows,
    int64_t first,
    int64_t label,
    float log_sum,
    float scale) {
  constexpr int kSize = Pack<T>::kSize;
  const float shift = -log_sum * kLog2OfE;
  const auto index = static_cast<uint64_t>(label - first);
  float shares[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    shares[j] = exp2f_of(fmaf(as_float(pack.values[j]), kLog2OfE, shift));
  }
  // Only the pack of the label and the packs at the end of the row.
  if (index < kSize || first + kSize > rows.num_classes) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      shares[j] -= index == j ? 1.0f : 0.0f;
      shares[j] = first + j < rows.num_classes ? shares[j] : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    pack.values[j] = as<T>(shares[j] * scale);
  }
  return pack;
}

/// Like torch's operator, aborts the program on an invalid label.
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
    add_pack(own, packs[i], rows.num_classes - i * kSize);
  }
  own = over_block<kThreads>(own);
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
      pack = gradient_of(packs[i], rows, i * kSize, label, log_sum, scale);
    }
    results[i] = pack;
  }
}

constexpr int kWideThreads = 1024;

/// Computes loss and gradient at once. A row is read from global memory once.
/// If it fits, it is kept in shared memory until its sum is known.
template <class T, bool kStays>
__global__ void __launch_bounds__(kWideThreads, 2) rows_with_gradient(
    LogitRows rows,
    const float* factor,
    float* losses,
    float* log_sums,
    T* gradient) {
  extern __shared__ uint4 shared[];
  __shared__ float whole;
  const int64_t row = blockIdx.x;
  const int64_t label = rows.labels[row];
  constexpr int kSize = Pack<T>::kSize;
  const int64_t num_packs = rows.row_stride / kSize;
  const T* logits = static_cast<const T*>(rows.logits) + row * rows.row_stride;
  const auto* packs = reinterpret_cast<const Pack<T>*>(logits);
  auto* kept = reinterpret_cast<Pack<T>*>(shared);
  auto* results = reinterpret_cast<Pack<T>*>(gradient + row * rows.row_stride);
  if (label == rows.ignored) {
    for (int64_t i = threadIdx.x; i < num_packs; i += kWideThreads) {
      results[i] = {};
    }
    if (threadIdx.x == 0) {
      losses[row] = 0.0f;
      log_sums[row] = 0.0f;
    }
    return;
  }
  check_label(label, rows.num_classes);
  if constexpr (kStays) {
    // Issue all loads at once, because each thread reads only its own packs.
    for (int64_t i = threadIdx.x; i < num_packs; i += kWideThreads) {
      __pipeline_memcpy_async(&kept[i], &packs[i], sizeof(Pack<T>));
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }
  SoftmaxSum own;
  for (int64_t i = threadIdx.x; i < num_packs; i += kWideThreads) {
    add_pack(own, kStays ? kept[i] : packs[i], rows.num_classes - i * kSize);
  }
  own = over_block<kWideThreads>(own);
  if (threadIdx.x == 0) {
    whole = own.greatest + logf(own.sum);
    log_sums[row] = whole;
    losses[row] = whole - as_float(logits[label]);
  }
  __syncthreads();
  const float log_sum = whole;
  const float scale = *factor;
  for (int64_t i = threadIdx.x; i < num_packs; i += kWideThreads) {
    results[i] = gradient_of(
        kStays ? kept[i] : packs[i], rows, i * kSize, label, log_sum, scale);
  }
}

/// Does not touch values that are already correct.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_packs(Pack<T>* values, int64_t num_packs, const float* number) {
  const float factor = *number;
  if (factor == 1.0f) {
    return;
  }
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < num_packs;
       i += step) {
    Pack<T> pack = values[i];
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      pack.values[j] = as<T>(as_float(pack.values[j]) * factor);
    }
    values[i] = pack;
  }
}

/// Whether two rows of this size fit into the shared memory of one SM of the
/// current device.
bool two_rows_stay(int64_t bytes) {
  int device = 0;
  int most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(
      &most, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  constexpr int64_t kReserved = 2048; // per block: used by the system and by us
  return 2 * (bytes + kReserved) <= most;
}

} // namespace

const char* cross_entropy_forward(
    const LogitRows& rows,
    float* losses,
    float* log_sums,
    void* stream) {
  with_type(rows.type, [&](auto zero) {
    forward_rows<decltype(zero)>
        <<<static_cast<unsigned>(rows.num_rows),
           kThreads,
           0,
           static_cast<cudaStream_t>(stream)>>>(rows, losses, log_sums);
  });
  return outcome();
}

const char* cross_entropy_backward(
    const LogitRows& rows,
    const float* log_sums,
    const float* factor,
    void* gradient,
    void* stream) {
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    backward_rows<T>
        <<<static_cast<unsigned>(rows.num_rows),
           kThreads,
           0,
           static_cast<cudaStream_t>(stream)>>>(
            rows, log_sums, factor, static_cast<T*>(gradient));
  });
  return outcome();
}

const char* cross_entropy_with_gradient(
    const LogitRows& rows,
    const float* factor,
    float* losses,
    float* log_sums,
    void* gradient,
    void* stream) {
  const auto blocks = static_cast<unsigned>(rows.num_rows);
  const auto on = static_cast<cudaStream_t>(stream);
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    auto* const result = static_cast<T*>(gradient);
    const auto bytes = rows.row_stride * static_cast<int64_t>(sizeof(T));
    if (two_rows_stay(bytes)) {
      cudaFuncSetAttribute(
          rows_with_gradient<T, true>,
          cudaFuncAttributeMaxDynamicSharedMemorySize,
          static_cast<int>(bytes));
      rows_with_gradient<T, true>
          <<<blocks, kWideThreads, static_cast<size_t>(bytes), on>>>(
              rows, factor, losses, log_sums, result);
    } else {
      rows_with_gradient<T, false><<<blocks, kWideThreads, 0, on>>>(
          rows, factor, losses, log_sums, result);
    }
  });
  return outcome();
}

const char* scale_unless_one(
    Number type,
    void* values,
    int64_t num_values,
    const float* number,
    void* stream) {
  constexpr unsigned kBlocks = 1056; // eight per SM of a large GPU
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    scale_packs<T><<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<Pack<T>*>(values), num_values / Pack<T>::kSize, number);
  });
  return outcome();
}

} // namespace accelerate::cuda_kernels
