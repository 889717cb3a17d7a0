// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kMaxPacks = 6;

/// Philox 4x32 with ten rounds. Its counters are the same as in torch's
/// kernels.
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

/// Each element uses 16 random bits for dropout, so one draw is enough for a
/// pack.
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

/// One warp per row. The warp keeps the row in registers.
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
  // Issue all loads before any value is used.
  Pack<T> own[kPacks];
  Pack<T> branch[kPacks];
  Pack<T> shift[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int index = k * kWarp + lane;
    const bool is_in = index < num_packs;
    own[k] = load_if<T>(is_in, rows.residual, first + index);
    branch[k] =
        load_if<T>(is_in && rows.branch != nullptr, rows.branch, first + index);
    shift[k] = load_if<T>(
        is_in && rows.branch_bias != nullptr, rows.branch_bias, index);
  }
  float values[kPacks][kSize];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int index = k * kWarp + lane;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      values[k][j] = as_float(own[k].values[j]);
    }
    if (rows.branch == nullptr || index >= num_packs) {
      continue;
    }
    uint8_t kept = 0xff;
    if (mask != nullptr) {
      kept = kept_bits<kSize>(
          draw(seed, static_cast<uint64_t>(first + index), offset / 4), limit);
      mask[first + index] = kept;
    }
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float x =
          as_float(branch[k].values[j]) + as_float(shift[k].values[j]);
      const float dropped = (kept >> j) & 1 ? x * scale : 0.0f;
      result.values[j] = as<T>(values[k][j] + dropped);
      values[k][j] = as_float(result.values[j]);
    }
    reinterpret_cast<Pack<T>*>(sum)[first + index] = result;
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
    const int index = k * kWarp + lane;
    if (index < num_packs) {
      const Pack<T> weight = load<T>(rows.weight, index);
      const Pack<T> bias = load<T>(rows.bias, index);
      Pack<T> result;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        result.values[j] = as<T>(
            (values[k][j] - mean) * deviation * as_float(weight.values[j]) +
            as_float(bias.values[j]));
      }
      reinterpret_cast<Pack<T>*>(normed)[first + index] = result;
    }
  }
}

/// Sums the values of a block's warps per channel.
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
    const int index = k * kWarp + lane;
    if (index < num_packs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        shared[warp * num_channels + index * kSize + j] = own[k][j];
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

/// The values of a row that backward reads.
template <class T, int kPacks>
struct GradientRow {
  Pack<T> of_normed[kPacks];
  Pack<T> other[kPacks];
  Pack<T> values[kPacks];
  uint32_t kept[kPacks];
  float mean;
  float deviation;
};

template <class T, int kPacks>
__device__ GradientRow<T, kPacks> load_row(
    const AddNormRows& rows,
    const float* means,
    const float* deviations,
    const uint8_t* mask,
    const AddNormGradients& gradients,
    int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_packs = static_cast<int>(rows.num_channels) / Pack<T>::kSize;
  const int64_t first = row * num_packs;
  const bool norms = rows.weight != nullptr;
  GradientRow<T, kPacks> own = {};
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int index = k * kWarp + lane;
    const int64_t at = first + index;
    const bool is_in = index < num_packs;
    own.other[k] =
        load_if<T>(is_in && gradients.other != nullptr, gradients.other, at);
    own.of_normed[k] = load_if<T>(is_in && norms, gradients.normed, at);
    own.values[k] = load_if<T>(is_in && norms, rows.residual, at);
    own.kept[k] = load_byte_if(is_in && mask != nullptr, mask, at);
  }
  if (norms) {
    own.mean = means[row];
    own.deviation = deviations[row];
  }
  return own;
}

/// Uses a few blocks for all rows, so that there are few partial sums per
/// channel. `partial`: 3 x blocks x channels. If registers permit, a warp loads
/// its next row before it computes, because few warps cannot hide memory
/// latency otherwise.
template <class T, int kPacks>
__global__ void __launch_bounds__(kRowThreads) add_norm_gradients(
    AddNormRows rows,
    const float* means,
    const float* deviations,
    const uint8_t* mask,
    AddNormGradients gradients,
    float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr bool kAhead = kPacks * kSize <= 24;
  extern __shared__ float shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int num_packs = static_cast<int>(rows.num_channels) / kSize;
  const float num = static_cast<float>(rows.num_channels);
  const float scale = keep_scale(rows.dropout);
  const auto row_at = [&](int64_t row) {
    return load_row<T, kPacks>(rows, means, deviations, mask, gradients, row);
  };
  float of_weight[kPacks][kSize] = {};
  float of_bias[kPacks][kSize] = {};
  float of_branch_bias[kPacks][kSize] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRowWarps;
  int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  GradientRow<T, kPacks> next = {};
  if (kAhead && row < rows.num_rows) {
    next = row_at(row);
  }
  for (; row < rows.num_rows; row += step) {
    const int64_t first = row * num_packs;
    GradientRow<T, kPacks> own;
    if constexpr (kAhead) {
      own = next;
      if (row + step < rows.num_rows) {
        next = row_at(row + step);
      }
    } else {
      own = row_at(row);
    }
    const auto exact = [&](int k, int j) {
      return (as_float(own.values[k].values[j]) - own.mean) * own.deviation;
    };
    const auto of_normed = [&](int k, int j) {
      const float one = as_float(own.of_normed[k].values[j]);
      return gradients.is_other_of_normed
                 ? one + as_float(own.other[k].values[j])
                 : one;
    };
    float sum1 = 0.0f;
    float sum2 = 0.0f;
    if (rows.weight != nullptr) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int index = k * kWarp + lane;
        if (index < num_packs) {
          const Pack<T> weight = load<T>(rows.weight, index);
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            const float g = of_normed(k, j);
            const float x = exact(k, j);
            of_weight[k][j] += g * x;
            of_bias[k][j] += g;
            const float scaled = g * as_float(weight.values[j]);
            sum1 += scaled * x;
            sum2 += scaled;
          }
        }
      }
      sum1 = over_warp(sum1) / num;
      sum2 = over_warp(sum2) / num;
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int index = k * kWarp + lane;
      if (index >= num_packs) {
        continue;
      }
      Pack<T> weight = {};
      if (rows.weight != nullptr) {
        weight = load<T>(rows.weight, index);
      }
      Pack<T> whole;
      Pack<T> dropped;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        float result = gradients.is_other_of_normed
                           ? 0.0f
                           : as_float(own.other[k].values[j]);
        if (rows.weight != nullptr) {
          const float scaled = of_normed(k, j) * as_float(weight.values[j]);
          result += own.deviation * (scaled - exact(k, j) * sum1 - sum2);
        }
        whole.values[j] = as<T>(result);
        const float x = (own.kept[k] >> j) & 1 ? result * scale : 0.0f;
        of_branch_bias[k][j] += x;
        dropped.values[j] = as<T>(x);
      }
      if (gradients.residual != nullptr) {
        static_cast<Pack<T>*>(gradients.residual)[first + index] = whole;
      }
      if (gradients.branch != nullptr) {
        static_cast<Pack<T>*>(gradients.branch)[first + index] = dropped;
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

/// Calls `work` with the number of packs per lane as a compile-time constant.
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

} // namespace

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
  constexpr int64_t kMostBlocks = 132; // SMs of a large GPU
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

} // namespace accelerate::cuda_kernels
