// SPDX-License-Identifier: Apache-2.0
// The gradient of a table's rows. It is deterministic, because it uses no
// floating-point atomics. Integer atomics count and collect the positions that
// use a row, in any order. The positions are then sorted before their gradients
// are summed.
#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kThreads = 256;

/// Counts how often each row is used.
template <class Id>
__global__ void count_ids(const Id* ids, int num_ids, int* counts) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < num_ids) {
    atomicAdd(counts + ids[i], 1);
  }
}

/// Gives each row its section of the list of positions. The order of sections
/// does not matter.
__global__ void
reserve_ranges(const int* counts, int num_rows, int* begins, int* next) {
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row < num_rows && counts[row] > 0) {
    begins[row] = atomicAdd(next, counts[row]);
  }
}

template <class Id>
__global__ void
collect_positions(const Id* ids, int num_ids, int* begins, int* positions) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < num_ids) {
    // The start offsets become end offsets.
    positions[atomicAdd(begins + ids[i], 1)] = i;
  }
}

/// Sorts the positions of a row if there are few of them: for each, counts the
/// smaller ones.
__device__ void order_few(const int* positions, int count, int* ordered) {
  const int own = static_cast<int>(threadIdx.x);
  if (own < count) {
    const int position = positions[own];
    int rank = 0;
    for (int i = 0; i < count; ++i) {
      rank += positions[i] < position ? 1 : 0;
    }
    ordered[rank] = position;
  }
  __syncthreads();
}

/// Sorts many positions with a bitmap of all positions. Each thread then writes
/// the positions of its words.
__device__ void order_many(
    int* positions,
    int count,
    unsigned* bits,
    int num_words,
    int* bits_of_threads) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < num_words; i += kThreads) {
    bits[i] = 0;
  }
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) {
    atomicOr(bits + positions[i] / 32, 1u << (positions[i] % 32));
  }
  __syncthreads();
  const int share = (num_words + kThreads - 1) / kThreads;
  const int begin = min(thread * share, num_words);
  const int end = min(begin + share, num_words);
  int num = 0;
  for (int word = begin; word < end; ++word) {
    num += __popc(bits[word]);
  }
  bits_of_threads[thread] = num;
  __syncthreads();
  int at = 0;
  for (int i = 0; i < thread; ++i) {
    at += bits_of_threads[i];
  }
  for (int word = begin; word < end; ++word) {
    for (unsigned left = bits[word]; left != 0; left &= left - 1) {
      positions[at++] = word * 32 + __ffs(static_cast<int>(left)) - 1;
    }
  }
  __syncthreads();
}

/// One block per row of the table. Its threads form `num_groups` groups. Each
/// group sums its share of the positions, then the groups' sums are added in
/// order.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_rows(
    const T* gradient,
    const int* counts,
    const int* ends,
    int* positions,
    int num_words,
    int num_packs,
    int padding,
    T* result) {
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ unsigned bits[];
  __shared__ int ordered[kThreads];
  __shared__ float sums[kThreads][kSize];
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int count = row == padding ? 0 : counts[row];
  auto* const out = reinterpret_cast<Pack<T>*>(result) +
                    static_cast<int64_t>(row) * num_packs;
  const int* list = ordered;
  if (count > kThreads) {
    int* const own = positions + ends[row] - count;
    order_many(own, count, bits, num_words, ordered);
    list = own;
  } else if (count > 0) {
    order_few(positions + ends[row] - count, count, ordered);
  }
  const int width = min(num_packs, kThreads);
  const int num_groups = count > 1 ? kThreads / width : 1;
  const int group = thread / width;
  const int share = (count + num_groups - 1) / num_groups;
  const int from = min(group * share, count);
  const int num = group < num_groups ? min(share, count - from) : 0;
  for (int first = 0; first < num_packs; first += width) {
    const int index = first + thread % width;
    const bool is_in = group < num_groups && index < num_packs;
    float total[kSize] = {};
    const auto pack_at = [&](int token) {
      return load_if<T>(
          is_in, gradient, static_cast<int64_t>(token) * num_packs + index);
    };
    const auto add = [&](const Pack<T>& pack) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        total[j] += as_float(pack.values[j]);
      }
    };
    // Issue several loads at a time, to hide memory latency.
    constexpr int kAhead = 8;
    int i = 0;
    for (; i + kAhead <= num; i += kAhead) {
      Pack<T> packs[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        packs[k] = pack_at(list[from + i + k]);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        add(packs[k]);
      }
    }
    for (; i < num; ++i) {
      add(pack_at(list[from + i]));
    }
    if (num_groups > 1) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        sums[thread][j] = total[j];
      }
      __syncthreads();
      if (group == 0) {
        for (int other = 1; other < num_groups; ++other) {
#pragma unroll
          for (int j = 0; j < kSize; ++j) {
            total[j] += sums[other * width + thread][j];
          }
        }
      }
    }
    if (group == 0 && is_in) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        pack.values[j] = as<T>(total[j]);
      }
      out[index] = pack;
    }
  }
}

template <class Id>
void collect(
    const EmbeddingIds& ids,
    const EmbeddingLists& lists,
    cudaStream_t on) {
  const auto blocks_of = [](int64_t num) {
    return static_cast<unsigned>((num + kThreads - 1) / kThreads);
  };
  const auto num_ids = static_cast<int>(ids.num_ids);
  const auto num_rows = static_cast<int>(ids.num_rows);
  const auto* const own = static_cast<const Id*>(ids.ids);
  count_ids<<<blocks_of(num_ids), kThreads, 0, on>>>(
      own, num_ids, lists.counts);
  reserve_ranges<<<blocks_of(num_rows), kThreads, 0, on>>>(
      lists.counts, num_rows, lists.ends, lists.counts + num_rows);
  collect_positions<<<blocks_of(num_ids), kThreads, 0, on>>>(
      own, num_ids, lists.ends, lists.positions);
}

} // namespace

bool fits_embedding(
    Number type,
    const EmbeddingIds& ids,
    int64_t num_channels) {
  const int64_t size = type == Number::kFloat ? 4 : 8;
  // Smaller tables would keep too few blocks busy.
  constexpr int64_t kFewestRows = 256;
  constexpr int64_t kMostIds = 32 * 1024 * 8; // as bits in shared memory
  return ids.num_ids > 0 && ids.num_ids <= kMostIds &&
         ids.num_rows >= kFewestRows && ids.num_rows < (int64_t{1} << 31) &&
         num_channels > 0 && num_channels % size == 0;
}

const char* embedding_backward(
    Number type,
    const EmbeddingIds& ids,
    int64_t padding,
    const void* gradient,
    int64_t num_channels,
    const EmbeddingLists& lists,
    void* result,
    void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaMemsetAsync(
      lists.counts, 0, static_cast<size_t>(ids.num_rows + 1) * sizeof(int), on);
  if (error != cudaSuccess) {
    return cudaGetErrorString(error);
  }
  if (ids.are_long) {
    collect<int64_t>(ids, lists, on);
  } else {
    collect<int32_t>(ids, lists, on);
  }
  const auto num_words = static_cast<int>((ids.num_ids + 31) / 32);
  const size_t bytes =
      ids.num_ids > kThreads ? static_cast<size_t>(num_words) * 4 : 0;
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    sum_rows<T><<<static_cast<unsigned>(ids.num_rows), kThreads, bytes, on>>>(
        static_cast<const T*>(gradient),
        lists.counts,
        lists.ends,
        lists.positions,
        num_words,
        static_cast<int>(num_channels / Pack<T>::kSize),
        static_cast<int>(padding),
        static_cast<T*>(result));
  });
  return outcome();
}

} // namespace accelerate::cuda_kernels
