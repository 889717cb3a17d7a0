// SPDX-License-Identifier: Apache-2.0
// The kernels as operators of CUDA tensors.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>

#include "accelerate/error.h"
#include "base/str.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_kernels.h"

namespace accelerate::kernels {
namespace {

using cuda_kernels::LogitRows;
using cuda_kernels::Number;

void check_launch(const char* error) {
  if (error != nullptr) {
    throw SystemError(str_cat("[cross_entropy] CUDA: ", error));
  }
}

void* current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

std::optional<Number> number_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Number::kFloat;
    case at::kHalf:
      return Number::kHalf;
    case at::kBFloat16:
      return Number::kBFloat16;
    default:
      return std::nullopt;
  }
}

/// Nothing where the kernels cannot read these rows.
std::optional<LogitRows> rows_of(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored) {
  constexpr size_t kBytes = 16;
  const auto type = number_of(logits.scalar_type());
  const auto row_bytes =
      static_cast<size_t>(logits.stride(0)) * logits.element_size();
  if (!type || logits.numel() == 0 || logits.stride(1) != 1 ||
      row_bytes % kBytes != 0 || !labels.is_contiguous() ||
      logits.stride(0) != logits.size(1) ||
      reinterpret_cast<size_t>(logits.const_data_ptr()) % kBytes != 0) {
    return std::nullopt;
  }
  return LogitRows{
      .type = *type,
      .logits = logits.const_data_ptr(),
      .labels = labels.const_data_ptr<int64_t>(),
      .num_rows = logits.size(0),
      .num_classes = num_classes,
      .row_stride = logits.stride(0),
      .ignored = ignored};
}

std::tuple<at::Tensor, at::Tensor> cuda_forward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored) {
  const auto rows = rows_of(logits, labels, num_classes, ignored);
  if (!rows) {
    return plain_cross_entropy_forward(logits, labels, num_classes, ignored);
  }
  const c10::cuda::CUDAGuard guard(logits.device());
  auto losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  auto log_sums = at::empty_like(losses);
  check_launch(cuda_kernels::cross_entropy_forward(
      *rows,
      losses.mutable_data_ptr<float>(),
      log_sums.mutable_data_ptr<float>(),
      current_stream(logits)));
  return {losses, log_sums};
}

at::Tensor cuda_backward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& log_sums,
    const at::Tensor& factor,
    int64_t num_classes,
    int64_t ignored) {
  const auto rows = rows_of(logits, labels, num_classes, ignored);
  if (!rows) {
    return plain_cross_entropy_backward(
        logits, labels, log_sums, factor, num_classes, ignored);
  }
  const c10::cuda::CUDAGuard guard(logits.device());
  const auto number = factor.to(at::kFloat);
  auto gradient = at::empty_like(logits);
  check_launch(cuda_kernels::cross_entropy_backward(
      *rows,
      log_sums.const_data_ptr<float>(),
      number.const_data_ptr<float>(),
      gradient.mutable_data_ptr(),
      current_stream(logits)));
  return gradient;
}

} // namespace

TORCH_LIBRARY_IMPL(accelerate, CUDA, library) {
  library.impl("_cross_entropy_forward", cuda_forward);
  library.impl("_cross_entropy_backward", cuda_backward);
}

} // namespace accelerate::kernels
