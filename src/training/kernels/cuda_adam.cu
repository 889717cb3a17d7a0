// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/cuda_common.cuh"

namespace accelerate::cuda_kernels {
namespace {

constexpr int kThreads = 512;
/// The number of elements that a thread reads at once.
constexpr int kWide = 4;
/// The number of elements per block.
constexpr int64_t kChunk = 8 * kWide * kThreads;
/// A launch passes its tensors as kernel arguments, which are limited to 4 KB.
constexpr int kMostTensors = 60;

struct AdamLaunch {
  AdamNumbers numbers;
  int num_tensors;
  /// The first block of each tensor.
  int first_block[kMostTensors];
  AdamTensor tensors[kMostTensors];
};
static_assert(sizeof(AdamLaunch) <= 4096, "arguments of a kernel");

template <class T>
struct alignas(sizeof(T) * kWide) Few {
  T values[kWide];
};

/// Factors of a step. They are computed in double once per block, because
/// powers near 1 lose half of their digits in float32.
struct AdamFactors {
  float gradient;
  float decay;
  float share1;
  float beta2;
  float share2;
  float step_size;
  float root_correction;
};

__device__ AdamFactors factors_of(const AdamNumbers& numbers, double step) {
  const double rate =
      numbers.rate_at != nullptr ? *numbers.rate_at : numbers.rate;
  AdamFactors factors;
  factors.gradient =
      numbers.gradient_factor != nullptr ? *numbers.gradient_factor : 1.0f;
  factors.decay = static_cast<float>(rate * numbers.weight_decay);
  factors.share1 = static_cast<float>(1.0 - numbers.beta1);
  factors.beta2 = static_cast<float>(numbers.beta2);
  factors.share2 = static_cast<float>(1.0 - numbers.beta2);
  factors.step_size =
      static_cast<float>(rate / (1.0 - pow(numbers.beta1, step)));
  factors.root_correction =
      static_cast<float>(sqrt(1.0 - pow(numbers.beta2, step)));
  return factors;
}

/// Returns the new parameter, and updates the moments in place.
__device__ float updated(
    const AdamNumbers& numbers,
    const AdamFactors& factors,
    float parameter,
    float gradient,
    float& exp_avg,
    float& exp_avg_sq) {
  gradient *= factors.gradient;
  if (numbers.is_maximized) {
    gradient = -gradient;
  }
  if (numbers.is_decoupled) {
    parameter -= factors.decay * parameter;
  } else {
    gradient += numbers.weight_decay * parameter;
  }
  exp_avg += factors.share1 * (gradient - exp_avg);
  exp_avg_sq =
      factors.beta2 * exp_avg_sq + factors.share2 * gradient * gradient;
  const float root = sqrtf(exp_avg_sq) / factors.root_correction;
  return parameter - factors.step_size * exp_avg / (root + numbers.epsilon);
}

template <class G, class C>
__global__ void __launch_bounds__(kThreads) adam_chunks(AdamLaunch launch) {
  const AdamNumbers& numbers = launch.numbers;
  if (numbers.found_inf != nullptr && *numbers.found_inf != 0.0f) {
    return;
  }
  const int tensor_index = tensor_of_block(launch);
  const AdamTensor& tensor = launch.tensors[tensor_index];
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) - launch.first_block[tensor_index]) *
      kChunk;
  const int64_t end = min(begin + kChunk, tensor.size);
  __shared__ AdamFactors shared;
  if (threadIdx.x == 0) {
    shared = factors_of(numbers, *tensor.step);
  }
  __syncthreads();
  const AdamFactors factors = shared;
  const auto* gradient = static_cast<const G*>(tensor.gradient);
  auto* copy = static_cast<C*>(tensor.copy);
  const bool is_wide = is_aligned(tensor.parameter, sizeof(Few<float>)) &&
                       is_aligned(tensor.exp_avg, sizeof(Few<float>)) &&
                       is_aligned(tensor.exp_avg_sq, sizeof(Few<float>)) &&
                       is_aligned(gradient, sizeof(Few<G>)) &&
                       is_aligned(copy, sizeof(Few<C>));
  int64_t done = begin;
  if (is_wide) {
    const int64_t last = begin + (end - begin) / kWide * kWide;
#pragma unroll 2
    for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kWide;
         i < last;
         i += kWide * kThreads) {
      auto& parameter_at = *reinterpret_cast<Few<float>*>(tensor.parameter + i);
      auto& exp_avg_at = *reinterpret_cast<Few<float>*>(tensor.exp_avg + i);
      auto& exp_avg_sq_at =
          *reinterpret_cast<Few<float>*>(tensor.exp_avg_sq + i);
      const auto given = *reinterpret_cast<const Few<G>*>(gradient + i);
      Few<float> parameter = parameter_at;
      Few<float> exp_avg = exp_avg_at;
      Few<float> exp_avg_sq = exp_avg_sq_at;
      Few<C> reduced;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        parameter.values[j] = updated(
            numbers,
            factors,
            parameter.values[j],
            as_float(given.values[j]),
            exp_avg.values[j],
            exp_avg_sq.values[j]);
        reduced.values[j] = as<C>(parameter.values[j]);
      }
      parameter_at = parameter;
      exp_avg_at = exp_avg;
      exp_avg_sq_at = exp_avg_sq;
      if (copy != nullptr) {
        *reinterpret_cast<Few<C>*>(copy + i) = reduced;
      }
    }
    done = last;
  }
  for (int64_t i = done + threadIdx.x; i < end; i += kThreads) {
    const float parameter = updated(
        numbers,
        factors,
        tensor.parameter[i],
        as_float(gradient[i]),
        tensor.exp_avg[i],
        tensor.exp_avg_sq[i]);
    tensor.parameter[i] = parameter;
    if (copy != nullptr) {
      copy[i] = as<C>(parameter);
    }
  }
}

} // namespace

const char* adam_step(
    const AdamNumbers& numbers,
    const AdamTensor* tensors,
    int64_t num_tensors,
    void* stream) {
  int64_t next = 0;
  while (next < num_tensors) {
    AdamLaunch launch = {};
    launch.numbers = numbers;
    int64_t num_blocks = 0;
    for (; next < num_tensors && launch.num_tensors < kMostTensors; ++next) {
      const AdamTensor& tensor = tensors[next];
      launch.first_block[launch.num_tensors] = static_cast<int>(num_blocks);
      launch.tensors[launch.num_tensors++] = tensor;
      num_blocks += (tensor.size + kChunk - 1) / kChunk;
    }
    if (num_blocks == 0) {
      continue;
    }
    with_type(numbers.gradient_type, [&](auto of_gradient) {
      with_type(numbers.copy_type, [&](auto of_copy) {
        adam_chunks<decltype(of_gradient), decltype(of_copy)>
            <<<static_cast<unsigned>(num_blocks),
               kThreads,
               0,
               static_cast<cudaStream_t>(stream)>>>(launch);
      });
    });
    if (const char* error = outcome(); error != nullptr) {
      return error;
    }
  }
  return nullptr;
}

} // namespace accelerate::cuda_kernels
