// SPDX-License-Identifier: Apache-2.0
// Fused operators for computations that take several passes over memory in
// LibTorch.
//
// They are registered with torch's dispatcher (`accelerate.kernels` in Python)
// and are differentiable. If the library was built with nvcc, GPUs run its own
// kernels, and a matrix product followed by gelu runs in cuBLASLt if cuBLASLt
// has a kernel for it. In all other cases, the operators are composed of torch
// operators, with the same results up to rounding.
//
// Second derivatives are not supported: a backward pass through a gradient
// throws `UsageError`. Under autocast, matrix products are computed in the
// dtype of autocast and everything else in the widest dtype of the arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "accelerate/export.h"

namespace accelerate::kernels {

/// Whether a device of this kind runs the library's own kernels.
ACCELERATE_API bool has_kernels(c10::Device device);

/// Returns the mean over rows of the cross-entropy between the first
/// `num_classes` columns of `logits` (rows x columns, any floating-point type)
/// and `labels` (one integer per row). Rows whose label is `ignored` do not
/// count. The columns after `num_classes` are padding, and their gradient is 0.
///
/// The computation uses float32 (float64 for float64 logits) but does not need
/// a float32 copy of the logits. The forward pass and the backward pass each
/// read the logits once. The result has dtype float32 or float64. A label out
/// of range throws `c10::Error` on the CPU and aborts the program on a GPU.
///
///     auto loss = accelerate::kernels::cross_entropy(
///         logits.flatten(0, 1), labels.flatten(), logits.size(-1));
ACCELERATE_API at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored = -100);

/// Computes `at::layer_norm` over the last dimension. The backward pass takes
/// one sweep over memory. `x`, `weight` and `bias` must have the same dtype.
/// Statistics are computed in float32 (float64 for float64 input).
ACCELERATE_API at::Tensor layer_norm(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double epsilon);

/// Computes residual + dropout(branch + branch_bias) in one sweep over memory.
/// The backward pass, including the gradient of the bias, also takes one sweep.
/// `branch_bias` may be undefined. All tensors must have the same dtype. On a
/// GPU, the dropout probability is rounded to a multiple of 1/65536.
ACCELERATE_API at::Tensor add_dropout(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    double dropout);

struct SumAndNorm {
  at::Tensor sum;
  at::Tensor normed;
};

/// Computes `add_dropout`, followed by the layer norm of its result. A
/// transformer computes this between two matrix products.
///
///     auto [sum, normed] = accelerate::kernels::add_dropout_layer_norm(
///         x, torch::linear(y, w), b, gain, shift, 0.1, 1e-5);
ACCELERATE_API SumAndNorm add_dropout_layer_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double dropout,
    double epsilon);

/// Computes x weight^T + bias over the last dimension. The gradient of the bias
/// is computed in one sweep at memory bandwidth. The shape of the weight is
/// outputs x inputs. If a weight is stored as inputs x outputs, pass `w.t()`.
/// All tensors must have the same dtype.
ACCELERATE_API at::Tensor
linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

enum class Gelu { kErf, kTanh };

/// Computes gelu(x up^T + up_bias) down^T, the MLP of a transformer block. The
/// tanh gelu is computed in the epilogue of the first product. In the backward
/// pass, the gradients of gelu and bias are computed in one sweep.
///
///     auto y = accelerate::kernels::linear_gelu_linear(
///         x, w, b, w.t(), accelerate::kernels::Gelu::kTanh);
ACCELERATE_API at::Tensor linear_gelu_linear(
    const at::Tensor& x,
    const at::Tensor& up,
    const at::Tensor& up_bias,
    const at::Tensor& down,
    Gelu gelu);

/// The normalised rows of `add_dropout_layer_norm`, returned twice because two
/// operators use them. Use this for transformers that add the normalised values
/// to the residual. The backward pass adds the gradients of both. The two
/// tensors share memory, so do not modify them in place.
///
///     auto [first, second] =
///         accelerate::kernels::add_dropout_layer_norm_twice(
///             x, torch::linear(y, w), b, gain, shift, 0.1, 1e-5);
///     auto next = second + torch::linear(first, v);
struct NormedTwice {
  at::Tensor first;
  at::Tensor second;
};
ACCELERATE_API NormedTwice add_dropout_layer_norm_twice(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double dropout,
    double epsilon);

/// Returns the rows `ids` (int32 or int64, any shape) of a table. The gradient
/// is summed without atomics or sorting, so it is deterministic. The row
/// `padding` does not get a gradient. An id out of range throws `c10::Error` on
/// the CPU and aborts the program on a GPU.
ACCELERATE_API at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    std::optional<int64_t> padding = {});

/// Computes x / (root mean square over the last dimension) * `weight`, in
/// float32 (float64 for float64 input). `x` and `weight` must have the same
/// dtype.
ACCELERATE_API at::Tensor
rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// Computes residual + branch, and the `rms_norm` of the sum.
ACCELERATE_API SumAndNorm add_rms_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double epsilon);

/// Computes the rotary position embedding: rotates channels d and d + D / 2 of
/// each head by an angle. The input is batch x tokens x heads x D. The cosine
/// and sine of the angles are float32 tensors of shape (batch or 1) x tokens x
/// D / 2 and do not get gradients.
ACCELERATE_API at::Tensor rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD);

/// Computes silu(gate) * up. Both must have the same dtype and shape.
///
///     auto y = accelerate::kernels::swiglu(
///         torch::linear(x, w), torch::linear(x, w));
ACCELERATE_API at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

struct PackedAttentionOptions {
  /// Tokens attend only to themselves and earlier tokens.
  bool is_causal = false;
  double dropout = 0;
  /// The scale of the dot products. Default: 1 / sqrt(channels per head).
  std::optional<double> scale = {};
};

/// Computes attention within packed sequences. The sequences are concatenated,
/// and each one attends only to itself. Queries are tokens x heads x channels.
/// Keys and values may have fewer heads, each of which serves a group of
/// consecutive query heads. `starts` contains the start of each sequence and
/// the end of the last one, on the device of the queries. `max_length` is an
/// upper bound on the lengths of the sequences. `starts` and `max_length` are
/// not checked on a GPU, because the host would have to wait for the GPU.
///
/// For 16-bit types on a GPU, uses flash attention without padding if the
/// number of channels per head is a multiple of 8. Otherwise, uses torch's
/// attention on padded sequences. Throws `UsageError` if shapes or dtypes do
/// not match.
///
///     auto x = torch::randn({5, 2, 8}); // Sequences of 3 and 2 tokens.
///     auto starts = torch::tensor({0, 3, 5}, torch::kInt);
///     auto y = accelerate::kernels::packed_attention(
///         x, x, x, starts, 3, {.is_causal = true});
ACCELERATE_API at::Tensor packed_attention(
    const at::Tensor& queries,
    const at::Tensor& keys,
    const at::Tensor& values,
    const at::Tensor& starts,
    int64_t max_length,
    const PackedAttentionOptions& options = {});

} // namespace accelerate::kernels
