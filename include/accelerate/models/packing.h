// SPDX-License-Identifier: Apache-2.0
// Batches without padding: concatenated sequences of different lengths.
#pragma once

#include <cstdint>

#include "accelerate/export.h"
#include "accelerate/models/model_inputs.h"

namespace accelerate::models {

/// The shape of a packed batch. A value of 0 means as large as the sequences
/// require. A captured step needs all three numbers, so that every batch has
/// the same shape. The rest of the row is padded with sequences that do not
/// count.
struct PackOptions {
  /// The number of tokens in the row (T of `ModelInputs::packed_mask`).
  int64_t num_tokens = 0;
  /// The number of sequences (S), including those that pad the row. To pad N
  /// tokens, ceil(N / L) sequences are needed.
  int64_t num_sequences = 0;
  /// The number of tokens of the longest sequence (L).
  int64_t max_length = 0;
};

/// Removes the padding of a batch. Every model of this library accepts the
/// result and computes the same outputs up to rounding, without the cost of
/// padding.
///
///     accelerate::models::ModelInputs batch{
///         .input_ids = torch::tensor({{5, 6, 7}, {8, 9, 0}}),
///         .attention_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}}),
///         .labels = torch::tensor({1, 0})};
///     batch = accelerate::models::pack(batch); // input_ids: {{5, 6, 7, 8, 9}}
///
/// Without an `attention_mask`, all tokens count. `labels` with the shape of
/// `input_ids` are also packed. Other labels are per sequence and are
/// unchanged. Sequences that pad the row have the label -100, which requires
/// integer labels.
///
/// Call this function in the loader's collate function, because a packed row
/// cannot be split among processes (`split_batches`, `dispatch_batches`).
/// `PackedBatchSampler` (`packed_batches.h`) chooses samples that fit. Throws
/// `UsageError` if tensors are not on the CPU, if shapes do not match, if a
/// sequence is empty, or if the samples exceed `options`.
ACCELERATE_API ModelInputs
pack(const ModelInputs& padded, const PackOptions& options = {});

} // namespace accelerate::models
