// SPDX-License-Identifier: Apache-2.0
// Operators that LibTorch has only in several passes over memory.
//
// They are registered with torch's dispatcher (`accelerate.kernels` in
// Python) and differentiable. Where the library was built with nvcc, GPUs run
// them as kernels of their own, and a product with its gelu through cuBLASLt
// where that has a kernel for it; everywhere else they are made of torch's
// operators, with the same results up to rounding.
//
// There are no second derivatives: a backward through a gradient throws
// `UsageError`. Under autocast products are computed in its type, everything
// else in the widest type of what is given.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "accelerate/export.h"

namespace accelerate::kernels {

/// Whether the operators here are kernels of their own on such a device.
ACCELERATE_API bool has_kernels(c10::Device device);

/// The mean over rows of the cross-entropy between the first `num_classes`
/// columns of `logits` (rows x columns, any floating-point type) and `labels`
/// (one whole number per row); rows whose label is `ignored` do not count.
/// Columns behind the classes are padding, which gets a gradient of 0.
///
/// Computed in float32 (float64 for such logits) without a copy of the logits
/// in it: one pass forward, one backward. The result is of that type. A label
/// that is no class throws `c10::Error` on the CPU and ends the program on a
/// GPU.
///
///     auto loss = accelerate::kernels::cross_entropy(
///         logits.flatten(0, 1), labels.flatten(), logits.size(-1));
ACCELERATE_API at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored = -100);

/// `at::layer_norm` over the last dimension, whose backward is one pass. `x`,
/// `weight` and `bias` are of one type; statistics are computed in float32
/// (float64 for such numbers).
ACCELERATE_API at::Tensor layer_norm(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double epsilon);

/// residual + dropout(branch + branch_bias) in one pass, with the gradient of
/// the bias in the pass of backward. `branch_bias` may be undefined. All are of
/// one type. A GPU drops with a probability that is rounded to 1/65536.
ACCELERATE_API at::Tensor add_dropout(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& branch_bias,
    double dropout);

struct SumAndNorm {
  at::Tensor sum;
  at::Tensor normed;
};

/// `add_dropout`, and the layer norm of its result: what stands between two
/// products of a transformer.
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

/// x weight^T + bias over the last dimension, whose bias gets its gradient in
/// one pass at the speed of memory. The weight is outputs x inputs; one that is
/// stored the other way round is given as `w.t()`. All are of one type.
ACCELERATE_API at::Tensor
linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

enum class Gelu { kErf, kTanh };

/// gelu(x up^T + up_bias) down^T: the middle of a transformer's block. The gelu
/// by tanh is computed where the first product leaves the registers; backward,
/// the gradients of gelu and bias are one pass.
///
///     auto y = accelerate::kernels::linear_gelu_linear(
///         x, w, b, w.t(), accelerate::kernels::Gelu::kTanh);
ACCELERATE_API at::Tensor linear_gelu_linear(
    const at::Tensor& x,
    const at::Tensor& up,
    const at::Tensor& up_bias,
    const at::Tensor& down,
    Gelu gelu);

/// The normed rows of `add_dropout_layer_norm` twice over, one for each of two
/// readers: what follows in a transformer that adds what it has normed. The
/// gradients of both are added in the pass of backward. Both are one memory:
/// change neither in place.
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

/// The rows `ids` (int64 or int32, any shape) of a table, whose gradient is
/// summed up without atomics: the same bits every time, and no sorting. The row
/// `padding` gets none. An id that is no row throws `c10::Error` on the CPU and
/// ends the program on a GPU.
ACCELERATE_API at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    std::optional<int64_t> padding = {});

/// x / root of its mean square over the last dimension, times `weight`; both of
/// one type, computed in float32 (float64 for such numbers).
ACCELERATE_API at::Tensor
rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// residual + branch, and the `rms_norm` of it.
ACCELERATE_API SumAndNorm add_rms_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double epsilon);

/// Rotary positions: turns channels d and d + D / 2 of each head of batch x
/// tokens x heads x D by an angle, given by its cosine and sine in float32 as
/// (batch or 1) x tokens x D / 2. The angles get no gradient.
ACCELERATE_API at::Tensor rotate(
    const at::Tensor& x_BTHD,
    const at::Tensor& cos_BTD,
    const at::Tensor& sin_BTD);

/// silu(gate) x up, of one type and shape.
///
///     auto y = accelerate::kernels::swiglu(
///         torch::linear(x, w), torch::linear(x, w));
ACCELERATE_API at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

struct PackedAttentionOptions {
  /// Tokens do not look at those behind them.
  bool is_causal = false;
  double dropout = 0;
  /// Of the products; one over the root of a head's channels by default.
  std::optional<double> scale = {};
};

/// Attention of sequences that lie one behind the other, of which each looks at
/// itself alone: tokens x heads x channels of the queries. Keys and values may
/// have fewer heads: each serves a run of neighbouring ones. `starts` says
/// where sequences begin and the last ends, on the device of the queries;
/// `max_length`, how long the longest is at most. Both are believed on a GPU,
/// where looking would wait for it.
///
/// Flash attention without padding for 16-bit numbers on a GPU, heads of a
/// multiple of 8 channels; else torch's attention of padded sequences. Throws
/// `UsageError` for shapes and types that do not belong together.
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
