// SPDX-License-Identifier: Apache-2.0
// Fused operators, for which LibTorch needs several passes over memory.
//
// They are registered with torch's dispatcher (`accelerate.kernels` in Python)
// and differentiable. If the library was built with nvcc, GPUs run our own
// kernels, and a matrix product followed by gelu runs in cuBLASLt if it has a
// kernel for it. Everywhere else they are composed of torch operators, with the
// same results up to rounding.
//
// There are no second derivatives: a backward pass through a gradient throws
// `UsageError`. Under autocast, products are computed in autocast's dtype and
// everything else in the widest dtype of the arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "accelerate/export.h"

namespace accelerate::kernels {

/// Whether a device of this kind runs the library's own kernels.
ACCELERATE_API bool has_kernels(c10::Device device);

/// The mean over rows of the cross-entropy between the first `num_classes`
/// columns of `logits` (rows x columns, any floating-point type) and `labels`
/// (one integer per row); rows whose label is `ignored` do not count. The
/// columns after `num_classes` are padding, with a gradient of 0.
///
/// Computed in float32 (float64 for float64 logits) without a float32 copy of
/// the logits: one pass forward, one backward. The result has that dtype. A
/// label out of range throws `c10::Error` on the CPU and aborts the program on
/// a GPU.
///
///     auto loss = accelerate::kernels::cross_entropy(
///         logits.flatten(0, 1), labels.flatten(), logits.size(-1));
ACCELERATE_API at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored = -100);

/// `at::layer_norm` over the last dimension. Its backward takes one pass over
/// memory. `x`, `weight` and `bias` have the same dtype; statistics are
/// computed in float32 (float64 for float64 input).
ACCELERATE_API at::Tensor layer_norm(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double epsilon);

/// residual + dropout(branch + branch_bias) in one pass. The backward also
/// takes one pass, including the gradient of the bias. `branch_bias` may be
/// undefined. All have the same dtype. On a GPU, the dropout probability is
/// rounded to 1/65536.
ACCELERATE_API at::Tensor add_dropout(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    double dropout);

struct SumAndNorm {
  at::Tensor sum;
  at::Tensor normed;
};

/// `add_dropout`, followed by the layer norm of its result: what a transformer
/// computes between two matrix products.
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

/// x weight^T + bias over the last dimension, with the gradient of the bias
/// computed in one pass at memory bandwidth. The weight is outputs x inputs;
/// pass a weight stored as inputs x outputs as `w.t()`. All have the same
/// dtype.
ACCELERATE_API at::Tensor
linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

enum class Gelu { kErf, kTanh };

/// gelu(x up^T + up_bias) down^T: the MLP of a transformer block. The tanh gelu
/// is computed in the epilogue of the first product; in backward, the gradients
/// of gelu and bias take one pass.
///
///     auto y = accelerate::kernels::linear_gelu_linear(
///         x, w, b, w.t(), accelerate::kernels::Gelu::kTanh);
ACCELERATE_API at::Tensor linear_gelu_linear(
    const at::Tensor& x,
    const at::Tensor& up,
    const at::Tensor& up_bias,
    const at::Tensor& down,
    Gelu gelu);

/// The normalised rows of `add_dropout_layer_norm` twice, one for each of two
/// consumers, for transformers that add the normalised values to the residual.
/// The backward pass adds the gradients of both. Both share memory: modify
/// neither in place.
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

/// The rows `ids` (int64 or int32, any shape) of a table. The gradient is
/// summed without atomics or sorting, so it is deterministic. The row `padding`
/// gets no gradient. An id out of range throws `c10::Error` on the CPU and
/// aborts the program on a GPU.
ACCELERATE_API at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    std::optional<int64_t> padding = {});

/// x / (root mean square over the last dimension) * `weight`; both have the
/// same dtype, computed in float32 (float64 for float64 input).
ACCELERATE_API at::Tensor
rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// residual + branch, and its `rms_norm`.
ACCELERATE_API SumAndNorm add_rms_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double epsilon);

/// Rotary position embedding: rotates channels d and d + D / 2 of each head of
/// batch x tokens x heads x D by an angle, given by its cosine and sine in
/// float32 as (batch or 1) x tokens x D / 2. The angles get no gradient.
ACCELERATE_API at::Tensor rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD);

/// silu(gate) * up, of the same dtype and shape.
///
///     auto y = accelerate::kernels::swiglu(
///         torch::linear(x, w), torch::linear(x, w));
ACCELERATE_API at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

struct PackedAttentionOptions {
  /// Tokens attend only to themselves and earlier ones.
  bool is_causal = false;
  double dropout = 0;
  /// Scale of the dot products; default: 1 / sqrt(channels per head).
  std::optional<double> scale = {};
};

/// Attention within packed sequences (concatenated, each attends only to
/// itself): queries are tokens x heads x channels. Keys and values may have
/// fewer heads: each serves a group of consecutive query heads. `starts`
/// contains the start of each sequence and the end of the last, on the device
/// of the queries; `max_length` is an upper bound of their lengths. Neither is
/// checked on a GPU, because that would wait for it.
///
/// Uses flash attention without padding for 16-bit types on a GPU if the number
/// of channels per head is a multiple of 8; otherwise torch's attention on
/// padded sequences. Throws `UsageError` for shapes and dtypes that do not
/// match.
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
