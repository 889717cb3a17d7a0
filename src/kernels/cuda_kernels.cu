// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

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

// --- residual, dropout and layer norm ----------------------------------------

constexpr int kRowWarps = 8;
constexpr int kRowThreads = kRowWarps * kWarp;
constexpr int kMaxPacks = 6;

/// Philox 4x32 with ten rounds, counted as torch's kernels count.
__device__ uint4 draw(uint64_t seed, uint64_t subsequence, uint64_t offset) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  uint4 c = make_uint4(
      static_cast<uint32_t>(offset),
      static_cast<uint32_t>(offset >> 32),
      static_cast<uint32_t>(subsequence),
      static_cast<uint32_t>(subsequence >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x);
    const uint32_t low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z);
    const uint32_t low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

/// Each number is dropped by 16 random bits, so that one draw serves a pack.
constexpr uint32_t kDropRange = 65536;
__host__ __device__ uint32_t drop_limit(float dropout) {
  return static_cast<uint32_t>(dropout * kDropRange + 0.5f);
}
__host__ __device__ float keep_scale(float dropout) {
  const uint32_t limit = drop_limit(dropout);
  return limit >= kDropRange ? 0.0f
                             : static_cast<float>(kDropRange) /
                                   static_cast<float>(kDropRange - limit);
}

template <int kSize>
__device__ uint8_t kept_bits(const uint4& random, uint32_t limit) {
  const uint32_t words[4] = {random.x, random.y, random.z, random.w};
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    const uint32_t value = (words[j / 2] >> (16 * (j % 2))) & 0xffffu;
    bits |= (value >= limit ? 1u : 0u) << j;
  }
  return static_cast<uint8_t>(bits);
}

__device__ float over_warp(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

template <class T>
__device__ Pack<T> load(const void* base, int64_t pack) {
  return static_cast<const Pack<T>*>(base)[pack];
}

/// A warp for each row, whose numbers stay in its registers.
template <class T, int kPacks>
__global__ void __launch_bounds__(kRowThreads) add_norm_rows(
    AddNormRows rows,
    RandomState random,
    T* sum,
    T* normed,
    float* means,
    float* deviations,
    uint8_t* mask) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (row >= rows.num_rows) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_packs = static_cast<int>(rows.num_channels) / kSize;
  const int64_t first = row * num_packs;
  const uint32_t limit = drop_limit(rows.dropout);
  const float scale = keep_scale(rows.dropout);
  const uint64_t seed =
      random.is_captured ? static_cast<uint64_t>(*random.seed_at) : random.seed;
  const uint64_t offset =
      random.is_captured
          ? static_cast<uint64_t>(*random.offset_at) + random.offset_in_graph
          : random.offset;
  float values[kPacks][kSize];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int place = k * kWarp + lane;
    if (place >= num_packs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        values[k][j] = 0.0f;
      }
      continue;
    }
    const Pack<T> own = load<T>(rows.residual, first + place);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      values[k][j] = as_float(own.values[j]);
    }
    if (rows.branch == nullptr) {
      continue;
    }
    const Pack<T> branch = load<T>(rows.branch, first + place);
    Pack<T> shift = {};
    if (rows.branch_bias != nullptr) {
      shift = load<T>(rows.branch_bias, place);
    }
    uint8_t kept = 0xff;
    if (mask != nullptr) {
      kept = kept_bits<kSize>(
          draw(seed, static_cast<uint64_t>(first + place), offset / 4), limit);
      mask[first + place] = kept;
    }
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float x = as_float(branch.values[j]) + as_float(shift.values[j]);
      const float dropped = (kept >> j) & 1 ? x * scale : 0.0f;
      result.values[j] = as<T>(values[k][j] + dropped);
      values[k][j] = as_float(result.values[j]);
    }
    reinterpret_cast<Pack<T>*>(sum)[first + place] = result;
  }
  if (rows.weight == nullptr) {
    return;
  }
  const float num = static_cast<float>(rows.num_channels);
  float total = 0.0f;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      total += values[k][j];
    }
  }
  const float mean = over_warp(total) / num;
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (k * kWarp + lane < num_packs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        squares += (values[k][j] - mean) * (values[k][j] - mean);
      }
    }
  }
  const float deviation = rsqrtf(over_warp(squares) / num + rows.epsilon);
  if (lane == 0) {
    means[row] = mean;
    deviations[row] = deviation;
  }
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int place = k * kWarp + lane;
    if (place < num_packs) {
      const Pack<T> weight = load<T>(rows.weight, place);
      const Pack<T> bias = load<T>(rows.bias, place);
      Pack<T> result;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        result.values[j] = as<T>(
            (values[k][j] - mean) * deviation * as_float(weight.values[j]) +
            as_float(bias.values[j]));
      }
      reinterpret_cast<Pack<T>*>(normed)[first + place] = result;
    }
  }
}

/// Adds up what the warps of a block hold for each channel.
template <int kPacks, int kSize>
__device__ void write_partial(
    const float (&own)[kPacks][kSize],
    float* shared,
    float* partial,
    int num_packs) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_channels = num_packs * kSize;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int place = k * kWarp + lane;
    if (place < num_packs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        shared[warp * num_channels + place * kSize + j] = own[k][j];
      }
    }
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < num_channels;
       c += kRowThreads) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kRowWarps; ++w) {
      total += shared[w * num_channels + c];
    }
    partial[c] = total;
  }
}

/// A few blocks for all rows, so that few partial sums are left for each
/// channel. `partial`: 3 x blocks x channels.
template <class T, int kPacks>
__global__ void __launch_bounds__(kRowThreads) add_norm_gradients(
    AddNormRows rows,
    const float* means,
    const float* deviations,
    const uint8_t* mask,
    AddNormGradients gradients,
    float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ float shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_packs = static_cast<int>(rows.num_channels) / kSize;
  const float num = static_cast<float>(rows.num_channels);
  const float scale = keep_scale(rows.dropout);
  float of_weight[kPacks][kSize] = {};
  float of_bias[kPacks][kSize] = {};
  float of_branch_bias[kPacks][kSize] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowWarps;
  for (int64_t row =
           static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
       row < rows.num_rows;
       row += step) {
    const int64_t first = row * num_packs;
    // Asked for before the sums over the row, which wait for the others.
    Pack<T> of_sum[kPacks] = {};
    if (gradients.sum != nullptr) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int place = k * kWarp + lane;
        if (place < num_packs) {
          of_sum[k] = load<T>(gradients.sum, first + place);
        }
      }
    }
    float result[kPacks][kSize] = {};
    if (rows.weight != nullptr) {
      const float mean = means[row];
      const float deviation = deviations[row];
      float exact[kPacks][kSize] = {};
      float sum1 = 0.0f;
      float sum2 = 0.0f;
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int place = k * kWarp + lane;
        if (place < num_packs) {
          const Pack<T> given = load<T>(gradients.normed, first + place);
          const Pack<T> value = load<T>(rows.residual, first + place);
          const Pack<T> weight = load<T>(rows.weight, place);
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            const float g = as_float(given.values[j]);
            exact[k][j] = (as_float(value.values[j]) - mean) * deviation;
            of_weight[k][j] += g * exact[k][j];
            of_bias[k][j] += g;
            result[k][j] = g * as_float(weight.values[j]);
            sum1 += result[k][j] * exact[k][j];
            sum2 += result[k][j];
          }
        }
      }
      sum1 = over_warp(sum1) / num;
      sum2 = over_warp(sum2) / num;
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          result[k][j] = deviation * (result[k][j] - exact[k][j] * sum1 - sum2);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int place = k * kWarp + lane;
      if (place >= num_packs) {
        continue;
      }
      if (gradients.sum != nullptr) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          result[k][j] += as_float(of_sum[k].values[j]);
        }
      }
      Pack<T> whole;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        whole.values[j] = as<T>(result[k][j]);
      }
      if (gradients.residual != nullptr) {
        static_cast<Pack<T>*>(gradients.residual)[first + place] = whole;
      }
      const uint8_t kept = mask == nullptr ? 0xff : mask[first + place];
      Pack<T> dropped;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float x = (kept >> j) & 1 ? result[k][j] * scale : 0.0f;
        of_branch_bias[k][j] += x;
        dropped.values[j] = as<T>(x);
      }
      if (gradients.branch != nullptr) {
        static_cast<Pack<T>*>(gradients.branch)[first + place] = dropped;
      }
    }
  }
  const int64_t blocks = gridDim.x;
  const int64_t own = blockIdx.x * rows.num_channels;
  const int64_t all = blocks * rows.num_channels;
  write_partial(of_weight, shared, partial + own, num_packs);
  write_partial(of_bias, shared, partial + all + own, num_packs);
  write_partial(of_branch_bias, shared, partial + 2 * all + own, num_packs);
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

template <class T>
int packs_per_lane(int64_t num_channels) {
  return static_cast<int>((num_channels / Pack<T>::kSize + kWarp - 1) / kWarp);
}

/// Calls `work` with the number of packs per lane as a constant.
template <class Work>
void with_packs(int packs, Work&& work) {
  switch (packs) {
    case 1:
      return work(std::integral_constant<int, 1>());
    case 2:
      return work(std::integral_constant<int, 2>());
    case 3:
      return work(std::integral_constant<int, 3>());
    case 4:
      return work(std::integral_constant<int, 4>());
    default:
      return work(std::integral_constant<int, kMaxPacks>());
  }
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

bool fits_add_norm(Number type, int64_t num_channels) {
  const int64_t size = type == Number::kFloat ? 4 : 8;
  return num_channels > 0 && num_channels % size == 0 &&
         num_channels <= size * kWarp * kMaxPacks &&
         num_channels * kRowWarps * static_cast<int64_t>(sizeof(float)) <=
             48 * 1024;
}

int64_t add_norm_mask_bytes(Number type, int64_t num_channels) {
  return num_channels / (type == Number::kFloat ? 4 : 8);
}

const char* add_norm_forward(
    const AddNormRows& rows,
    const RandomState& random,
    void* sum,
    void* normed,
    float* mean,
    float* reciprocal_deviation,
    uint8_t* mask,
    void* stream) {
  const auto blocks =
      static_cast<unsigned>((rows.num_rows + kRowWarps - 1) / kRowWarps);
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    with_packs(packs_per_lane<T>(rows.num_channels), [&](auto packs) {
      add_norm_rows<T, decltype(packs)::value>
          <<<blocks, kRowThreads, 0, static_cast<cudaStream_t>(stream)>>>(
              rows,
              random,
              static_cast<T*>(sum),
              static_cast<T*>(normed),
              mean,
              reciprocal_deviation,
              mask);
    });
  });
  return outcome();
}

int64_t add_norm_blocks(int64_t num_rows) {
  constexpr int64_t kMostBlocks = 132; // As many as a large GPU has parts.
  return std::max<int64_t>(
      1, std::min(kMostBlocks, (num_rows + kRowWarps - 1) / kRowWarps));
}

const char* add_norm_backward(
    const AddNormRows& rows,
    const float* mean,
    const float* reciprocal_deviation,
    const uint8_t* mask,
    const AddNormGradients& gradients,
    float* partial,
    void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const auto blocks = static_cast<unsigned>(add_norm_blocks(rows.num_rows));
  const auto channels = static_cast<int>(rows.num_channels);
  const size_t bytes =
      static_cast<size_t>(channels) * kRowWarps * sizeof(float);
  with_type(rows.type, [&](auto zero) {
    using T = decltype(zero);
    with_packs(packs_per_lane<T>(channels), [&](auto packs) {
      add_norm_gradients<T, decltype(packs)::value>
          <<<blocks, kRowThreads, bytes, on>>>(
              rows, mean, reciprocal_deviation, mask, gradients, partial);
    });
    const dim3 grid(static_cast<unsigned>((channels + kWarp - 1) / kWarp), 3);
    add_partials<T><<<grid, kRowThreads, 0, on>>>(
        partial,
        static_cast<int>(blocks),
        channels,
        static_cast<T*>(gradients.vectors));
  });
  return outcome();
}

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
