// SPDX-License-Identifier: Apache-2.0
// The kernels as operators of CUDA tensors.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

#include "accelerate/error.h"
#include "base/str.h"
#include "kernels/add_norm.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_kernels.h"
#include "kernels/linear.h"

namespace accelerate::kernels {
namespace {

using cuda_kernels::LogitRows;
using cuda_kernels::Number;

void check_launch(const char* error) {
  if (error != nullptr) {
    throw SystemError(str_cat("[kernels] CUDA: ", error));
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

/// The next numbers of the generator of a device: one draw for each thread.
cuda_kernels::RandomState next_random(const at::Tensor& tensor) {
  auto* generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      std::nullopt,
      at::cuda::detail::getDefaultCUDAGenerator(tensor.device().index()));
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  const auto state = generator->philox_cuda_state(/*increment=*/4);
  if (state.captured_) {
    return {
        .is_captured = true,
        .seed_at = state.seed_.ptr,
        .offset_at = state.offset_.ptr,
        .offset_in_graph = state.offset_intragraph_};
  }
  return {.seed = state.seed_.val, .offset = state.offset_.val};
}

bool is_dense(const std::optional<at::Tensor>& tensor) {
  constexpr size_t kBytes = 16;
  return !tensor ||
         (tensor->is_contiguous() &&
          reinterpret_cast<size_t>(tensor->const_data_ptr()) % kBytes == 0);
}

const void* data_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr() : nullptr;
}

bool fits(const at::Tensor& rows) {
  const auto type = number_of(rows.scalar_type());
  return type && rows.numel() > 0 &&
         cuda_kernels::fits_add_norm(*type, rows.size(-1));
}

AddNormResult cuda_add_norm_forward(
    const at::Tensor& residual,
    const std::optional<at::Tensor>& branch,
    const std::optional<at::Tensor>& branch_bias,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double dropout,
    double epsilon) {
  if (!fits(residual)) {
    return plain_add_norm_forward(
        residual, branch, branch_bias, weight, bias, dropout, epsilon);
  }
  const c10::cuda::CUDAGuard guard(residual.device());
  const auto own = residual.contiguous();
  const auto other =
      branch ? std::optional(branch->contiguous()) : std::nullopt;
  if (!is_dense(own) || !is_dense(other) || !is_dense(branch_bias) ||
      !is_dense(weight) || !is_dense(bias)) {
    throw UsageError(
        "[add_dropout_layer_norm] got memory that begins at no multiple of 16 "
        "bytes, expected that of torch's allocator; clone() the tensor");
  }
  const auto type = *number_of(own.scalar_type());
  const int64_t num_channels = own.size(-1);
  const int64_t num_rows = own.numel() / num_channels;
  const auto none = at::empty({0}, own.options());
  const auto floats = own.options().dtype(at::kFloat);
  auto sum = other ? at::empty_like(own) : none;
  auto normed = weight ? at::empty_like(own) : none;
  auto mean = weight ? at::empty({num_rows}, floats) : none;
  auto deviation = weight ? at::empty({num_rows}, floats) : none;
  auto mask = none;
  cuda_kernels::RandomState random;
  if (other && dropout > 0) {
    random = next_random(own);
    mask = at::empty(
        {num_rows, cuda_kernels::add_norm_mask_bytes(type, num_channels)},
        own.options().dtype(at::kByte));
  }
  check_launch(cuda_kernels::add_norm_forward(
      {.type = type,
       .num_rows = num_rows,
       .num_channels = num_channels,
       .residual = own.const_data_ptr(),
       .branch = data_of(other),
       .branch_bias = data_of(branch_bias),
       .weight = data_of(weight),
       .bias = data_of(bias),
       .dropout = other ? static_cast<float>(dropout) : 0.0f,
       .epsilon = static_cast<float>(epsilon)},
      random,
      sum.mutable_data_ptr(),
      normed.mutable_data_ptr(),
      weight ? mean.mutable_data_ptr<float>() : nullptr,
      weight ? deviation.mutable_data_ptr<float>() : nullptr,
      mask.numel() > 0 ? mask.mutable_data_ptr<uint8_t>() : nullptr,
      current_stream(own)));
  return {sum, normed, mean, deviation, mask};
}

AddNormGradient cuda_add_norm_backward(
    const std::optional<at::Tensor>& of_sum,
    const std::optional<at::Tensor>& of_normed,
    const at::Tensor& sum,
    const std::optional<at::Tensor>& weight,
    const at::Tensor& mean,
    const at::Tensor& reciprocal_deviation,
    const at::Tensor& mask,
    bool has_branch,
    double dropout) {
  if (!fits(sum)) {
    return plain_add_norm_backward(
        of_sum,
        of_normed,
        sum,
        weight,
        mean,
        reciprocal_deviation,
        mask,
        has_branch,
        dropout);
  }
  const c10::cuda::CUDAGuard guard(sum.device());
  const auto own = sum.contiguous();
  const auto given_sum =
      of_sum ? std::optional(of_sum->contiguous()) : std::nullopt;
  // Nobody may have used what was normed.
  const auto given_normed = weight && of_normed
                                ? std::optional(of_normed->contiguous())
                                : std::nullopt;
  const bool norms = given_normed.has_value();
  const auto type = *number_of(own.scalar_type());
  const int64_t num_channels = own.size(-1);
  const int64_t num_rows = own.numel() / num_channels;
  const bool drops = has_branch && dropout > 0;
  auto of_residual = at::empty_like(own);
  auto of_branch = drops ? at::empty_like(own) : at::empty({0}, own.options());
  auto vectors = at::empty({3, num_channels}, own.options());
  const auto partial = at::empty(
      {3, cuda_kernels::add_norm_blocks(num_rows), num_channels},
      own.options().dtype(at::kFloat));
  check_launch(cuda_kernels::add_norm_backward(
      {.type = type,
       .num_rows = num_rows,
       .num_channels = num_channels,
       .residual = own.const_data_ptr(),
       .branch = nullptr,
       .branch_bias = nullptr,
       .weight = norms ? data_of(weight) : nullptr,
       .bias = nullptr,
       .dropout = drops ? static_cast<float>(dropout) : 0.0f,
       .epsilon = 0.0f},
      norms ? mean.const_data_ptr<float>() : nullptr,
      norms ? reciprocal_deviation.const_data_ptr<float>() : nullptr,
      drops ? mask.const_data_ptr<uint8_t>() : nullptr,
      {.sum = data_of(given_sum),
       .normed = data_of(given_normed),
       .residual = of_residual.mutable_data_ptr(),
       .branch = drops ? of_branch.mutable_data_ptr() : nullptr,
       .vectors = vectors.mutable_data_ptr()},
      partial.mutable_data_ptr<float>(),
      current_stream(own)));
  return {of_residual, of_branch, vectors};
}

/// Whether `sum_columns` can read these rows.
bool has_packs(const at::Tensor& rows) {
  constexpr size_t kBytes = 16;
  return number_of(rows.scalar_type()) && rows.numel() > 0 &&
         static_cast<size_t>(rows.size(1)) * rows.element_size() % kBytes ==
             0 &&
         is_dense(rows);
}

/// The sums of `values`, or of what goes to `result` where there is an `inner`.
at::Tensor launch_sums(
    const at::Tensor& values,
    const std::optional<at::Tensor>& inner,
    bool is_tanh,
    const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(values.device());
  const auto type = *number_of(values.scalar_type());
  const int64_t num_rows = values.size(0);
  const int64_t num_columns = values.size(1);
  const auto partial = at::empty(
      {cuda_kernels::column_sum_blocks(type, num_rows, num_columns),
       num_columns},
      values.options().dtype(at::kFloat));
  auto sums = at::empty({num_columns}, values.options());
  check_launch(cuda_kernels::sum_columns(
      {.type = type,
       .num_rows = num_rows,
       .num_columns = num_columns,
       .values = values.const_data_ptr(),
       .inner = data_of(inner),
       .is_tanh = is_tanh},
      result.defined() ? result.mutable_data_ptr() : nullptr,
      partial.mutable_data_ptr<float>(),
      sums.mutable_data_ptr(),
      current_stream(values)));
  return sums;
}

at::Tensor cuda_column_sums(const at::Tensor& rows) {
  return has_packs(rows) ? launch_sums(rows, {}, false, {})
                         : plain_column_sums(rows);
}

std::tuple<at::Tensor, at::Tensor> cuda_gelu_gradient(
    const at::Tensor& of_outer,
    const at::Tensor& inner,
    bool is_tanh) {
  if (!has_packs(of_outer) || !has_packs(inner)) {
    return plain_gelu_gradient(of_outer, inner, is_tanh);
  }
  auto of_inner = at::empty_like(of_outer);
  auto sums = launch_sums(of_outer, inner, is_tanh, of_inner);
  return {of_inner, sums};
}

} // namespace

TORCH_LIBRARY_IMPL(accelerate, CUDA, library) {
  library.impl("_cross_entropy_forward", cuda_forward);
  library.impl("_cross_entropy_backward", cuda_backward);
  library.impl("_add_norm_forward", cuda_add_norm_forward);
  library.impl("_add_norm_backward", cuda_add_norm_backward);
  library.impl("_column_sums", cuda_column_sums);
  library.impl("_gelu_gradient", cuda_gelu_gradient);
}

} // namespace accelerate::kernels
