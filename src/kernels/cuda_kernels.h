// SPDX-License-Identifier: Apache-2.0
// The border between code that nvcc compiles and code that knows tensors. No
// header of torch's or CUDA's, so that both compilers read it.
#pragma once

#include <cstdint>

namespace accelerate::cuda_kernels {

enum class Number { kFloat, kHalf, kBFloat16 };

/// Every launch returns null, or what CUDA says is wrong. `stream` is a
/// cudaStream_t.
struct LogitRows {
  Number type;
  /// Each row begins at a multiple of 16 bytes.
  const void* logits;
  const int64_t* labels;
  int64_t num_rows;
  /// Columns that count, and numbers from one row to the next.
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

/// `gradient` has `row_stride` columns; those behind the classes become 0.
const char* cross_entropy_backward(
    const LogitRows& rows,
    const float* log_sums,
    const float* factor,
    void* gradient,
    void* stream);

/// Both in one pass over the logits. `gradient` is that of the losses times
/// `factor`, laid out as above.
const char* cross_entropy_with_gradient(
    const LogitRows& rows,
    const float* factor,
    float* losses,
    float* log_sums,
    void* gradient,
    void* stream);

/// `values`, whole packs of 16 bytes, times a number; not read where it is 1.
const char* scale_unless_one(
    Number type,
    void* values,
    int64_t num_values,
    const float* number,
    void* stream);

/// Where random numbers come from, as torch's generators say it.
struct RandomState {
  /// Values, or where a recorded kernel finds them.
  bool is_captured = false;
  uint64_t seed = 0;
  uint64_t offset = 0;
  const int64_t* seed_at = nullptr;
  const int64_t* offset_at = nullptr;
  uint64_t offset_in_graph = 0;
};

/// sum = residual + dropout(branch + branch_bias); normed = layer norm of sum.
/// Pointers may be null: without `branch` the sum is the residual, without
/// `weight` nothing is normed, without `bias` it is 0. Rows are dense and begin
/// at multiples of 16 bytes.
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

/// Whether rows of so many numbers fit into the registers of a warp.
bool fits_add_norm(Number type, int64_t num_channels);
/// Bytes of `mask` per row: a bit for each number that is kept.
int64_t add_norm_mask_bytes(Number type, int64_t num_channels);

/// `mask` may be null where nothing is dropped.
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
  /// Of the outputs. The other may be null; it is of what was normed, too, or
  /// of the sum.
  const void* normed;
  const void* other;
  bool is_other_of_normed;
  /// Of the inputs; `branch` may be null, where it is the residual's.
  void* residual;
  void* branch;
  /// Of weight, bias and branch_bias, behind each other.
  void* vectors;
};

/// Blocks that `add_norm_backward` uses: `partial` has 3 x blocks x channels.
int64_t add_norm_blocks(int64_t num_rows);
/// `rows.residual` is the sum.
const char* add_norm_backward(
    const AddNormRows& rows,
    const float* mean,
    const float* reciprocal_deviation,
    const uint8_t* mask,
    const AddNormGradients& gradients,
    float* partial,
    void* stream);

/// Dense rows from a multiple of 16 bytes on, of a multiple of 16 bytes.
struct SummedRows {
  Number type;
  int64_t num_rows;
  int64_t num_columns;
  const void* values;
  /// Where set, `values` are gradients of gelu(inner), and those of `inner` are
  /// summed.
  const void* inner;
  /// Whether the gelu is the one by tanh.
  bool is_tanh;
};

/// Blocks that `sum_columns` uses: `partial` has blocks x columns.
int64_t column_sum_blocks(Number type, int64_t num_rows, int64_t num_columns);
/// The sum over rows. Gradients of `inner` go to `result`, which may be
/// `rows.values`.
const char* sum_columns(
    const SummedRows& rows,
    void* result,
    float* partial,
    void* sums,
    void* stream);

/// gelu(inner), the one without tanh, of numbers that fill packs of 16 bytes.
const char* gelu(
    Number type,
    const void* inner,
    int64_t num_numbers,
    void* result,
    void* stream);

/// sum = residual + branch; normed = sum / root of its mean square x weight.
/// `branch` may be null, where the sum is the residual. Dense rows from a
/// multiple of 16 bytes on.
struct RmsNormRows {
  Number type;
  int64_t num_rows;
  int64_t num_channels;
  const void* residual;
  const void* branch;
  const void* weight;
  float epsilon;
};

/// Whether a block has a thread for every 16 bytes of a row.
bool fits_rms_norm(Number type, int64_t num_channels);
const char* rms_norm_forward(
    const RmsNormRows& rows,
    void* sum,
    void* normed,
    float* reciprocal_roots,
    void* stream);
/// Blocks that `rms_norm_backward` uses: `partial` has blocks x channels.
int64_t rms_norm_blocks(int64_t num_rows);
/// `rows.residual` is the sum; `of_sum` may be null.
const char* rms_norm_backward(
    const RmsNormRows& rows,
    const float* reciprocal_roots,
    const void* of_sum,
    const void* of_normed,
    void* of_residual,
    float* partial,
    void* of_weight,
    void* stream);

/// tokens x heads x channels, dense; half of the channels are whole packs.
struct RotatedHeads {
  Number type;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_channels;
  const void* values;
  /// Angles x half of the channels; token t has those of t % num_angles.
  int64_t num_angles;
  const float* cos;
  const float* sin;
  bool is_inverse;
};
const char* rotate(const RotatedHeads& heads, void* result, void* stream);

/// Whole packs of 16 bytes: silu(gate) x up.
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

/// A tensor that Adam trains, in float32.
struct AdamTensor {
  float* parameter;
  const void* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  /// How many steps there were with this one.
  const float* step;
  /// The parameter in a reduced type, written after it; null where none is.
  void* copy;
  int64_t size;
};

struct AdamNumbers {
  Number gradient_type;
  Number copy_type;
  /// The host's, unless `rate_at` is set.
  double rate;
  const float* rate_at;
  double beta1;
  double beta2;
  float weight_decay;
  float epsilon;
  bool is_maximized;
  /// Whether the decay is the parameter's own (AdamW) or the gradient's (Adam).
  bool is_decoupled;
  /// With 1 there, nothing is written; may be null.
  const float* found_inf;
  /// Multiplies the gradients; may be null.
  const float* gradient_factor;
};

/// One pass over all tensors.
const char* adam_step(
    const AdamNumbers& numbers,
    const AdamTensor* tensors,
    int64_t num_tensors,
    void* stream);

/// The rows of a table that were asked for.
struct EmbeddingIds {
  const void* ids;
  /// int64, otherwise int32.
  bool are_long;
  int64_t num_ids;
  int64_t num_rows;
};

/// Memory that `embedding_backward` needs.
struct EmbeddingLists {
  /// One more than rows.
  int* counts;
  /// One for each row.
  int* ends;
  /// One for each id.
  int* places;
};

bool fits_embedding(Number type, const EmbeddingIds& ids, int64_t num_channels);

/// The gradient of all rows of the table; that of row `padding` is 0.
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

/// How many `sums` `total_norm` needs.
int64_t total_norm_blocks(const NormTensor* tensors, int64_t num_tensors);
/// The root of the sum of all squares.
const char* total_norm(
    const NormTensor* tensors,
    int64_t num_tensors,
    float* sums,
    float* norm,
    void* stream);

} // namespace accelerate::cuda_kernels
