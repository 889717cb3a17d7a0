// SPDX-License-Identifier: Apache-2.0
// Batches without padding: concatenated sequences of different lengths.
#pragma once

#include <cstdint>

#include "accelerate/export.h"
#include "accelerate/models/model_inputs.h"

namespace accelerate::models {

/// The shape of a packed batch; 0 means as large as the sequences require. A
/// captured step needs all three, so that every batch has the same shape; the
/// rest is filled up with sequences that do not count.
struct PackOptions {
  /// Tokens of the row (T of `ModelInputs::packed_mask`).
  int64_t num_tokens = 0;
  /// Sequences (S), including those that fill up the row: for N missing tokens
  /// these are ceil(N / L).
  int64_t num_sequences = 0;
  /// Tokens of the longest sequence (L).
  int64_t max_length = 0;
};

/// Removes the padding of a batch. Every model of this library accepts the
/// result: it computes the same up to rounding, and padding costs nothing.
///
///     accelerate::models::ModelInputs batch{
///         .input_ids = torch::tensor({{5, 6, 7}, {8, 9, 0}}),
///         .attention_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}}),
///         .labels = torch::tensor({1, 0})};
///     batch = accelerate::models::pack(batch); // input_ids: {{5, 6, 7, 8, 9}}
///
/// Without an `attention_mask`, all tokens count. `labels` of the shape of
/// `input_ids` are also packed. Other labels are per sequence and are
/// unchanged. Sequences that fill up the row have labels of -100; this requires
/// integer labels.
///
/// Call it in the loader's collator, where batches are made: a packed row
/// cannot be split among processes (`split_batches`, `dispatch_batches`).
/// `PackedBatchSampler` (`packed_batches.h`) chooses samples that fit. Throws
/// `UsageError` for tensors that are not on the CPU, shapes that do not match,
/// empty sequences, and samples that exceed `options`.
ACCELERATE_API ModelInputs
pack(const ModelInputs& padded, const PackOptions& options = {});

} // namespace accelerate::models
