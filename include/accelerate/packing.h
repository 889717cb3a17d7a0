// SPDX-License-Identifier: Apache-2.0
// Batches without padding: sequences of different lengths one behind the other.
#pragma once

#include <cstdint>

#include "accelerate/export.h"
#include "accelerate/model_inputs.h"

namespace accelerate::models {

/// The shapes of a packed batch. 0: as the sequences are. A step that is
/// captured wants all three, so that every batch has the same shapes; what is
/// missing is filled up with sequences that count nowhere.
struct PackOptions {
  /// Tokens of the row (T of `ModelInputs::packed_mask`).
  int64_t num_tokens = 0;
  /// Sequences (S), those that fill up the row included: of N missing tokens
  /// these are N / L, rounded up.
  int64_t num_sequences = 0;
  /// Tokens of the longest sequence (L).
  int64_t max_length = 0;
};

/// A padded batch without its padding, which every model of this library takes
/// in its place: what is computed is the same but for rounding, and padding
/// costs nothing.
///
///     accelerate::models::ModelInputs batch{
///         .input_ids = torch::tensor({{5, 6, 7}, {8, 9, 0}}),
///         .attention_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}}),
///         .labels = torch::tensor({1, 0})};
///     batch = accelerate::models::pack(batch); // input_ids: {{5, 6, 7, 8, 9}}
///
/// Where there is no `attention_mask`, all tokens count. `labels` of the shape
/// of `input_ids` are packed with them; others are of whole sequences and stay.
/// Sequences that fill up have labels of -100; labels that are no whole numbers
/// cannot say so.
///
/// Call it where batches are made, in a loader's collator: a packed row cannot
/// be cut into the parts of several processes (`split_batches`,
/// `dispatch_batches`). `PackedBatchSampler` (`packed_batches.h`) chooses
/// samples that fit. Throws `UsageError` for tensors that are not on the CPU,
/// for shapes that do not belong together, for sequences without a token and
/// for what does not fit `options`.
ACCELERATE_API ModelInputs
pack(const ModelInputs& padded, const PackOptions& options = {});

} // namespace accelerate::models
