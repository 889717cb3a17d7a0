// SPDX-License-Identifier: Apache-2.0
// Registers the kernels as operators of CUDA tensors.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/kernels/adam.h"
#include "training/kernels/add_norm.h"
#include "training/kernels/cross_entropy.h"
#include "training/kernels/cuda_kernels.h"
#include "training/kernels/embedding.h"
#include "training/kernels/gated.h"
#include "training/kernels/linear.h"
#include "training/kernels/total_norm.h"

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

/// Describes the rows; empty if the kernels do not support them.
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

bool is_dense(const std::optional<at::Tensor>& tensor) {
  constexpr size_t kBytes = 16;
  return !tensor ||
         (tensor->is_contiguous() &&
          reinterpret_cast<size_t>(tensor->const_data_ptr()) % kBytes == 0);
}

/// Whether kernels can process the tensor in whole packs, with this number of
/// elements per row.
bool is_packed(const at::Tensor& tensor, int64_t row) {
  constexpr int64_t kBytes = 16;
  return number_of(tensor.scalar_type()) && tensor.numel() > 0 &&
         row * static_cast<int64_t>(tensor.element_size()) % kBytes == 0 &&
         is_dense(tensor);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_with_gradient(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& factor,
    int64_t num_classes,
    int64_t ignored) {
  const auto rows = rows_of(logits, labels, num_classes, ignored);
  if (!rows) {
    const auto [losses, log_sums] =
        plain_cross_entropy_forward(logits, labels, num_classes, ignored);
    return {
        losses,
        log_sums,
        plain_cross_entropy_backward(
            logits, labels, log_sums, factor, num_classes, ignored)};
  }
  const c10::cuda::CUDAGuard guard(logits.device());
  auto losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  auto log_sums = at::empty_like(losses);
  auto gradient = at::empty_like(logits);
  check_launch(cuda_kernels::cross_entropy_with_gradient(
      *rows,
      factor.const_data_ptr<float>(),
      losses.mutable_data_ptr<float>(),
      log_sums.mutable_data_ptr<float>(),
      gradient.mutable_data_ptr(),
      current_stream(logits)));
  return {losses, log_sums, gradient};
}

void cuda_scale_unless_one(const at::Tensor& values, const at::Tensor& number) {
  if (!is_packed(values, values.numel())) {
    values.mul_(number);
    return;
  }
  const c10::cuda::CUDAGuard guard(values.device());
  const auto factor = number.to(at::kFloat);
  check_launch(cuda_kernels::scale_unless_one(
      *number_of(values.scalar_type()),
      values.mutable_data_ptr(),
      values.numel(),
      factor.const_data_ptr<float>(),
      current_stream(values)));
}

void cuda_adam_step(
    at::TensorList parameters,
    at::TensorList gradients,
    at::TensorList exp_avgs,
    at::TensorList exp_avg_sqs,
    at::TensorList max_exp_avg_sqs,
    at::TensorList steps,
    at::TensorList copies,
    const std::optional<at::Tensor>& learning_rate,
    double lr,
    double beta1,
    double beta2,
    double weight_decay,
    double eps,
    bool maximize,
    bool is_decoupled,
    const std::optional<at::Tensor>& found_inf,
    const std::optional<at::Tensor>& gradient_factor) {
  const auto plain = [&] {
    plain_adam_step(
        parameters,
        gradients,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        steps,
        copies,
        learning_rate,
        lr,
        beta1,
        beta2,
        weight_decay,
        eps,
        maximize,
        is_decoupled,
        found_inf,
        gradient_factor);
  };
  if (parameters.empty()) {
    return;
  }
  const auto of_gradient = number_of(gradients[0].scalar_type());
  const auto of_copy =
      copies.empty()
          ? Number::kFloat
          : number_of(copies[0].scalar_type()).value_or(Number::kFloat);
  if (!max_exp_avg_sqs.empty() || !of_gradient) {
    return plain();
  }
  std::vector<cuda_kernels::AdamTensor> tensors(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const auto walks_alike = [&](const at::Tensor& other) {
      return other.device() == parameter.device() &&
             other.strides() == parameter.strides();
    };
    const bool fits =
        parameter.scalar_type() == at::kFloat &&
        exp_avgs[i].scalar_type() == at::kFloat &&
        exp_avg_sqs[i].scalar_type() == at::kFloat &&
        gradients[i].scalar_type() == gradients[0].scalar_type() &&
        parameter.is_non_overlapping_and_dense() && walks_alike(exp_avgs[i]) &&
        walks_alike(exp_avg_sqs[i]) && walks_alike(gradients[i]) &&
        steps[i].device() == parameter.device() &&
        (copies.empty() ||
         (walks_alike(copies[i]) &&
          copies[i].scalar_type() == copies[0].scalar_type()));
    if (!fits) {
      return plain();
    }
    tensors[i] = {
        .parameter = parameter.mutable_data_ptr<float>(),
        .gradient = gradients[i].const_data_ptr(),
        .exp_avg = exp_avgs[i].mutable_data_ptr<float>(),
        .exp_avg_sq = exp_avg_sqs[i].mutable_data_ptr<float>(),
        .step = steps[i].const_data_ptr<float>(),
        .copy = copies.empty() ? nullptr : copies[i].mutable_data_ptr(),
        .size = parameter.numel()};
  }
  const c10::cuda::CUDAGuard guard(parameters[0].device());
  check_launch(cuda_kernels::adam_step(
      {.gradient_type = *of_gradient,
       .copy_type = of_copy,
       .rate = lr,
       .rate_at =
           learning_rate ? learning_rate->const_data_ptr<float>() : nullptr,
       .beta1 = beta1,
       .beta2 = beta2,
       .weight_decay = static_cast<float>(weight_decay),
       .epsilon = static_cast<float>(eps),
       .is_maximized = maximize,
       .is_decoupled = is_decoupled,
       .found_inf = found_inf ? found_inf->const_data_ptr<float>() : nullptr,
       .gradient_factor = gradient_factor
                              ? gradient_factor->const_data_ptr<float>()
                              : nullptr},
      tensors.data(),
      static_cast<int64_t>(tensors.size()),
      current_stream(parameters[0])));
}

at::Tensor cuda_total_norm(at::TensorList tensors, double norm_type) {
  std::vector<cuda_kernels::NormTensor> read;
  for (const auto& tensor : tensors) {
    const auto type = number_of(tensor.scalar_type());
    if (norm_type != 2 || !type || tensor.layout() != at::kStrided ||
        tensor.device() != tensors[0].device() ||
        !tensor.is_non_overlapping_and_dense()) {
      return plain_total_norm(tensors, norm_type);
    }
    read.push_back({tensor.const_data_ptr(), tensor.numel(), *type});
  }
  const c10::cuda::CUDAGuard guard(tensors[0].device());
  const auto num_tensors = static_cast<int64_t>(read.size());
  const auto floats = tensors[0].options().dtype(at::kFloat);
  const auto sums = at::empty(
      {cuda_kernels::total_norm_blocks(read.data(), num_tensors)}, floats);
  auto norm = at::empty({}, floats);
  check_launch(cuda_kernels::total_norm(
      read.data(),
      num_tensors,
      sums.mutable_data_ptr<float>(),
      norm.mutable_data_ptr<float>(),
      current_stream(norm)));
  return norm;
}

/// Reserves the next random numbers of a device's generator: one draw per
/// thread.
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
        "[add_dropout_layer_norm] The memory of a tensor is not aligned to 16 "
        "bytes. Pass a clone() of it");
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
    const std::optional<at::Tensor>& of_normed_too,
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
        of_normed_too,
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
  // The normalised values or the sum may be unused. At most two of the three
  // are defined.
  const auto& one = of_normed ? of_normed : of_normed_too;
  const bool is_other_of_normed = of_normed && of_normed_too;
  const auto& other = is_other_of_normed ? of_normed_too : of_sum;
  const auto given_normed =
      weight && one ? std::optional(one->contiguous()) : std::nullopt;
  const auto given_other =
      other ? std::optional(other->contiguous()) : std::nullopt;
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
      {.normed = data_of(given_normed),
       .other = data_of(given_other),
       .is_other_of_normed = is_other_of_normed,
       .residual = of_residual.mutable_data_ptr(),
       .branch = drops ? of_branch.mutable_data_ptr() : nullptr,
       .vectors = vectors.mutable_data_ptr()},
      partial.mutable_data_ptr<float>(),
      current_stream(own)));
  return {of_residual, of_branch, vectors};
}

/// The sums of `values`. With an `inner`, the sums of the gradients that are
/// written to `result`.
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
  return is_packed(rows, rows.size(1)) ? launch_sums(rows, {}, false, {})
                                       : plain_column_sums(rows);
}

at::Tensor cuda_gelu(const at::Tensor& inner, bool is_tanh) {
  if (is_tanh || !is_packed(inner, inner.numel())) {
    return plain_gelu(inner, is_tanh);
  }
  const c10::cuda::CUDAGuard guard(inner.device());
  auto result = at::empty_like(inner);
  check_launch(cuda_kernels::gelu(
      *number_of(inner.scalar_type()),
      inner.const_data_ptr(),
      inner.numel(),
      result.mutable_data_ptr(),
      current_stream(inner)));
  return result;
}

std::tuple<at::Tensor, at::Tensor> cuda_gelu_gradient(
    const at::Tensor& of_outer,
    const at::Tensor& inner,
    bool is_tanh) {
  if (!is_packed(of_outer, of_outer.size(1)) ||
      !is_packed(inner, inner.size(1))) {
    return plain_gelu_gradient(of_outer, inner, is_tanh);
  }
  auto of_inner = at::empty_like(of_outer);
  auto sums = launch_sums(of_outer, inner, is_tanh, of_inner);
  return {of_inner, sums};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cuda_rms_norm_forward(
    const at::Tensor& residual,
    const std::optional<at::Tensor>& branch,
    const at::Tensor& weight,
    double epsilon) {
  const auto own = residual.contiguous();
  const auto other =
      branch ? std::optional(branch->contiguous()) : std::nullopt;
  const int64_t num_channels = own.size(-1);
  if (!is_packed(own, num_channels) || !is_dense(other) || !is_dense(weight) ||
      !cuda_kernels::fits_rms_norm(
          *number_of(own.scalar_type()), num_channels)) {
    return plain_rms_norm_forward(residual, branch, weight, epsilon);
  }
  const c10::cuda::CUDAGuard guard(own.device());
  const int64_t num_rows = own.numel() / num_channels;
  auto sum = other ? at::empty_like(own) : at::empty({0}, own.options());
  auto normed = at::empty_like(own);
  auto roots = at::empty({num_rows}, own.options().dtype(at::kFloat));
  check_launch(cuda_kernels::rms_norm_forward(
      {.type = *number_of(own.scalar_type()),
       .num_rows = num_rows,
       .num_channels = num_channels,
       .residual = own.const_data_ptr(),
       .branch = data_of(other),
       .weight = weight.const_data_ptr(),
       .epsilon = static_cast<float>(epsilon)},
      sum.mutable_data_ptr(),
      normed.mutable_data_ptr(),
      roots.mutable_data_ptr<float>(),
      current_stream(own)));
  return {sum, normed, roots};
}

std::tuple<at::Tensor, at::Tensor> cuda_rms_norm_backward(
    const std::optional<at::Tensor>& of_sum,
    const at::Tensor& of_normed,
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& reciprocal_root) {
  const auto own = sum.contiguous();
  const auto given = of_normed.contiguous();
  const auto beside =
      of_sum ? std::optional(of_sum->contiguous()) : std::nullopt;
  const int64_t num_channels = own.size(-1);
  if (!is_packed(own, num_channels) || !is_dense(given) || !is_dense(beside) ||
      !is_dense(weight) ||
      !cuda_kernels::fits_rms_norm(
          *number_of(own.scalar_type()), num_channels)) {
    return plain_rms_norm_backward(
        of_sum, of_normed, sum, weight, reciprocal_root);
  }
  const c10::cuda::CUDAGuard guard(own.device());
  const int64_t num_rows = own.numel() / num_channels;
  auto of_residual = at::empty_like(own);
  auto of_weight = at::empty_like(weight);
  const auto partial = at::empty(
      {cuda_kernels::rms_norm_blocks(num_rows), num_channels},
      own.options().dtype(at::kFloat));
  check_launch(cuda_kernels::rms_norm_backward(
      {.type = *number_of(own.scalar_type()),
       .num_rows = num_rows,
       .num_channels = num_channels,
       .residual = own.const_data_ptr(),
       .branch = nullptr,
       .weight = weight.const_data_ptr(),
       .epsilon = 0.0f},
      reciprocal_root.const_data_ptr<float>(),
      data_of(beside),
      given.const_data_ptr(),
      of_residual.mutable_data_ptr(),
      partial.mutable_data_ptr<float>(),
      of_weight.mutable_data_ptr(),
      current_stream(own)));
  return {of_residual, of_weight};
}

at::Tensor cuda_rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD,
    bool is_inverse) {
  const auto own = x_BTHD.contiguous();
  const auto cos = cos_BTD.contiguous();
  const auto sin = sin_BTD.contiguous();
  if (!is_packed(own, own.size(3) / 2)) {
    return plain_rotate(x_BTHD, cos_BTD, sin_BTD, is_inverse);
  }
  const c10::cuda::CUDAGuard guard(own.device());
  auto result = at::empty_like(own);
  check_launch(cuda_kernels::rotate(
      {.type = *number_of(own.scalar_type()),
       .num_tokens = own.size(0) * own.size(1),
       .num_heads = own.size(2),
       .head_channels = own.size(3),
       .values = own.const_data_ptr(),
       .num_angles = cos.size(0) * cos.size(1),
       .cos = cos.const_data_ptr<float>(),
       .sin = sin.const_data_ptr<float>(),
       .is_inverse = is_inverse},
      result.mutable_data_ptr(),
      current_stream(own)));
  return result;
}

at::Tensor cuda_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const auto own = gate.contiguous();
  const auto other = up.contiguous();
  if (!is_packed(own, own.numel()) || !is_dense(other)) {
    return plain_swiglu(gate, up);
  }
  const c10::cuda::CUDAGuard guard(own.device());
  auto result = at::empty_like(own);
  check_launch(cuda_kernels::swiglu(
      *number_of(own.scalar_type()),
      own.const_data_ptr(),
      other.const_data_ptr(),
      result.mutable_data_ptr(),
      own.numel(),
      current_stream(own)));
  return result;
}

std::tuple<at::Tensor, at::Tensor> cuda_swiglu_backward(
    const at::Tensor& of_result,
    const at::Tensor& gate,
    const at::Tensor& up) {
  const auto given = of_result.contiguous();
  const auto own = gate.contiguous();
  const auto other = up.contiguous();
  if (!is_packed(own, own.numel()) || !is_dense(other) || !is_dense(given)) {
    return plain_swiglu_backward(of_result, gate, up);
  }
  const c10::cuda::CUDAGuard guard(own.device());
  auto of_gate = at::empty_like(own);
  auto of_up = at::empty_like(own);
  check_launch(cuda_kernels::swiglu_backward(
      *number_of(own.scalar_type()),
      given.const_data_ptr(),
      own.const_data_ptr(),
      other.const_data_ptr(),
      of_gate.mutable_data_ptr(),
      of_up.mutable_data_ptr(),
      own.numel(),
      current_stream(own)));
  return {of_gate, of_up};
}

at::Tensor cuda_embedding_backward(
    const at::Tensor& gradient,
    const at::Tensor& ids,
    int64_t num_rows,
    int64_t padding) {
  const auto own = gradient.contiguous();
  const auto flat = ids.contiguous();
  const auto type = number_of(own.scalar_type());
  const cuda_kernels::EmbeddingIds asked = {
      .ids = flat.const_data_ptr(),
      .are_long = flat.scalar_type() == at::kLong,
      .num_ids = flat.numel(),
      .num_rows = num_rows};
  const int64_t num_channels = own.size(-1);
  if (!type || !cuda_kernels::fits_embedding(*type, asked, num_channels) ||
      !is_dense(own)) {
    return plain_embedding_backward(gradient, ids, num_rows, padding);
  }
  const c10::cuda::CUDAGuard guard(own.device());
  auto result = at::empty({num_rows, num_channels}, own.options());
  const auto lists = at::empty(
      {2 * num_rows + 1 + asked.num_ids}, own.options().dtype(at::kInt));
  int* const counts = lists.mutable_data_ptr<int>();
  check_launch(cuda_kernels::embedding_backward(
      *type,
      asked,
      padding,
      own.const_data_ptr(),
      num_channels,
      {.counts = counts,
       .ends = counts + num_rows + 1,
       .positions = counts + 2 * num_rows + 1},
      result.mutable_data_ptr(),
      current_stream(own)));
  return result;
}

} // namespace

TORCH_LIBRARY_IMPL(accelerate, CUDA, library) {
  library.impl("_cross_entropy_forward", cuda_forward);
  library.impl("_cross_entropy_backward", cuda_backward);
  library.impl("_cross_entropy_with_gradient", cuda_with_gradient);
  library.impl("_scale_unless_one_", cuda_scale_unless_one);
  library.impl("_adam_step", cuda_adam_step);
  library.impl("_total_norm", cuda_total_norm);
  library.impl("_add_norm_forward", cuda_add_norm_forward);
  library.impl("_add_norm_backward", cuda_add_norm_backward);
  library.impl("_column_sums", cuda_column_sums);
  library.impl("_gelu", cuda_gelu);
  library.impl("_gelu_gradient", cuda_gelu_gradient);
  library.impl("_rms_norm_forward", cuda_rms_norm_forward);
  library.impl("_rms_norm_backward", cuda_rms_norm_backward);
  library.impl("_rotate", cuda_rotate);
  library.impl("_swiglu", cuda_swiglu);
  library.impl("_swiglu_backward", cuda_swiglu_backward);
  library.impl("_embedding_backward", cuda_embedding_backward);
}

} // namespace accelerate::kernels
