// SPDX-License-Identifier: Apache-2.0
// The boundary between code compiled by nvcc and code that uses tensors.
// Includes no headers of torch or CUDA, so that both compilers can read it.
#pragma once

#include <cstdint>

namespace accelerate::cuda_kernels {

enum class Number { kFloat, kHalf, kBFloat16 };

/// Every launch returns null, or CUDA's error message. `stream` is a
/// cudaStream_t.
struct LogitRows {
  Number type;
  /// Each row is aligned to 16 bytes.
  const void* logits;
  const int64_t* labels;
  int64_t num_rows;
  /// The number of classes, and the elements from one row to the next.
  int64_t num_classes;
  int64_t row_stride;
  int64_t ignored;
};

/// The loss of each row and the logarithm of its sum of exponentials.
const char* cross_entropy_forward(
    const LogitRows& rows,
    float* losses,
    float* log_sums,
    void* stream);

/// `gradient` has `row_stride` columns. Those after the classes become 0.
const char* cross_entropy_backward(
    const LogitRows& rows,
    const float* log_sums,
    const float* factor,
    void* gradient,
    void* stream);

/// Computes both in one pass over the logits. `gradient` is the gradient of the
/// losses times `factor`, with the layout above.
const char* cross_entropy_with_gradient(
    const LogitRows& rows,
    const float* factor,
    float* losses,
    float* log_sums,
    void* gradient,
    void* stream);

/// Multiplies `values`, in whole packs of 16 bytes, by a number. Does not read
/// them if the number is 1.
const char* scale_unless_one(
    Number type,
    void* values,
    int64_t num_values,
    const float* number,
    void* stream);

/// The state of a random generator, in the form that torch passes to kernels.
struct RandomState {
  /// Whether the kernel is recorded. It then reads the state through pointers.
  bool is_captured = false;
  uint64_t seed = 0;
  uint64_t offset = 0;
  const int64_t* seed_at = nullptr;
  const int64_t* offset_at = nullptr;
  uint64_t offset_in_graph = 0;
};

/// sum = residual + dropout(branch + branch_bias), and normed = layer norm of
/// sum. Pointers may be null. Without `branch`, the sum is the residual.
/// Without `weight`, nothing is normalised. Without `bias`, it is 0. Rows are
/// dense and aligned to 16 bytes.
struct AddNormRows {
  Number type;
  int64_t num_rows;
  int64_t num_channels;
  const void* residual;
  const void* branch;
  const void* branch_bias;
  const void* weight;
  const void* bias;
  float dropout;
  float epsilon;
};

/// Whether rows with this number of elements fit into the registers of a warp.
bool fits_add_norm(Number type, int64_t num_channels);
/// Bytes of `mask` per row: one bit per element that is kept.
int64_t add_norm_mask_bytes(Number type, int64_t num_channels);

/// `mask` may be null if there is no dropout.
const char* add_norm_forward(
    const AddNormRows& rows,
    const RandomState& random,
    void* sum,
    void* normed,
    float* mean,
    float* reciprocal_deviation,
    uint8_t* mask,
    void* stream);

struct AddNormGradients {
  /// Gradients of the outputs. The second may be null. It belongs to a second
  /// use of the normalised values, or to the sum.
  const void* normed;
  const void* other;
  bool is_other_of_normed;
  /// Gradients of the inputs. `branch` may be null if it equals the residual's
  /// gradient.
  void* residual;
  void* branch;
  /// Gradients of weight, bias and branch_bias, concatenated.
  void* vectors;
};

/// The number of blocks of `add_norm_backward`. `partial` has 3 x blocks x
/// channels.
int64_t add_norm_blocks(int64_t num_rows);
/// `rows.residual` must contain the sum.
const char* add_norm_backward(
    const AddNormRows& rows,
    const float* mean,
    const float* reciprocal_deviation,
    const uint8_t* mask,
    const AddNormGradients& gradients,
    float* partial,
    void* stream);

/// Dense rows, aligned to 16 bytes, whose length is a multiple of 16 bytes.
struct SummedRows {
  Number type;
  int64_t num_rows;
  int64_t num_columns;
  const void* values;
  /// If set, `values` are gradients of gelu(inner), and the gradients of
  /// `inner` are summed.
  const void* inner;
  /// Whether the gelu uses the tanh approximation.
  bool is_tanh;
};

/// The number of blocks of `sum_columns`. `partial` has blocks x columns.
int64_t column_sum_blocks(Number type, int64_t num_rows, int64_t num_columns);
/// The sum over rows. Gradients of `inner` are written to `result`, which may
/// be `rows.values`.
const char* sum_columns(
    const SummedRows& rows,
    void* result,
    float* partial,
    void* sums,
    void* stream);

/// gelu(inner), without the tanh approximation, for whole packs of 16 bytes.
const char* gelu(
    Number type,
    const void* inner,
    int64_t num_elements,
    void* result,
    void* stream);

/// sum = residual + branch, and normed = sum / root mean square * weight. If
/// `branch` is null, the sum is the residual. Dense rows, aligned to 16 bytes.
struct RmsNormRows {
  Number type;
  int64_t num_rows;
  int64_t num_channels;
  const void* residual;
  const void* branch;
  const void* weight;
  float epsilon;
};

/// Whether a block has one thread for every 16 bytes of a row.
bool fits_rms_norm(Number type, int64_t num_channels);
const char* rms_norm_forward(
    const RmsNormRows& rows,
    void* sum,
    void* normed,
    float* reciprocal_roots,
    void* stream);
/// The number of blocks of `rms_norm_backward`. `partial` has blocks x
/// channels.
int64_t rms_norm_blocks(int64_t num_rows);
/// `rows.residual` must contain the sum. `of_sum` may be null.
const char* rms_norm_backward(
    const RmsNormRows& rows,
    const float* reciprocal_roots,
    const void* of_sum,
    const void* of_normed,
    void* of_residual,
    float* partial,
    void* of_weight,
    void* stream);

/// tokens x heads x channels, dense. Half of the channels are whole packs.
struct RotatedHeads {
  Number type;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_channels;
  const void* values;
  /// Angles x half of the channels. Token t uses row t % num_angles.
  int64_t num_angles;
  const float* cos;
  const float* sin;
  bool is_inverse;
};
const char* rotate(const RotatedHeads& heads, void* result, void* stream);

/// silu(gate) * up, in whole packs of 16 bytes.
const char* swiglu(
    Number type,
    const void* gate,
    const void* up,
    void* result,
    int64_t num_values,
    void* stream);
const char* swiglu_backward(
    Number type,
    const void* of_result,
    const void* gate,
    const void* up,
    void* of_gate,
    void* of_up,
    int64_t num_values,
    void* stream);

/// A parameter that Adam trains, in float32.
struct AdamTensor {
  float* parameter;
  const void* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  /// The number of steps, including this one.
  const float* step;
  /// A reduced-precision copy of the parameter, written after it. May be null.
  void* copy;
  int64_t size;
};

struct AdamNumbers {
  Number gradient_type;
  Number copy_type;
  /// The learning rate from the host, used if `rate_at` is null.
  double rate;
  const float* rate_at;
  double beta1;
  double beta2;
  float weight_decay;
  float epsilon;
  bool is_maximized;
  /// Whether weight decay is decoupled (AdamW) or added to the gradient (Adam).
  bool is_decoupled;
  /// If the value is 1, nothing is written. May be null.
  const float* found_inf;
  /// Multiplies the gradients. May be null.
  const float* gradient_factor;
};

/// Updates all tensors in one pass.
const char* adam_step(
    const AdamNumbers& numbers,
    const AdamTensor* tensors,
    int64_t num_tensors,
    void* stream);

/// The ids of the table rows that are used.
struct EmbeddingIds {
  const void* ids;
  /// Whether ids are int64. Otherwise, they are int32.
  bool are_long;
  int64_t num_ids;
  int64_t num_rows;
};

/// Memory that `embedding_backward` needs.
struct EmbeddingLists {
  /// One element more than there are rows.
  int* counts;
  /// One element per row.
  int* ends;
  /// One element per id.
  int* positions;
};

bool fits_embedding(Number type, const EmbeddingIds& ids, int64_t num_channels);

/// The gradient of all rows of the table. The gradient of row `padding` is 0.
const char* embedding_backward(
    Number type,
    const EmbeddingIds& ids,
    int64_t padding,
    const void* gradient,
    int64_t num_channels,
    const EmbeddingLists& lists,
    void* result,
    void* stream);

struct NormTensor {
  const void* values;
  int64_t size;
  Number type;
};

/// The number of elements of `sums` that `total_norm` needs.
int64_t total_norm_blocks(const NormTensor* tensors, int64_t num_tensors);
/// The square root of the sum of all squares.
const char* total_norm(
    const NormTensor* tensors,
    int64_t num_tensors,
    float* sums,
    float* norm,
    void* stream);

} // namespace accelerate::cuda_kernels
