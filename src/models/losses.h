// SPDX-License-Identifier: Apache-2.0
// The losses that transformers selects by the kind of labels.
//
// On the CPU, labels out of range are rejected. On a GPU, checking would wait
// for the device, so the operator's own assertion aborts the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "models/packed_rows.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate::models {

/// `problem_type` may be empty: see `PretrainedOptions`.
at::Tensor classification_loss(
    const at::Tensor& logits_BL,
    const at::Tensor& labels,
    const std::string& problem_type);

/// The mean over the labels that are not -100. `logits` may have padding after
/// the vocabulary's columns (`project_to_vocabulary`). If `vocabulary` is set,
/// it is the divided parameter, and `logits` are this rank's columns.
at::Tensor token_loss(
    const at::Tensor& logits_BTP,
    const at::Tensor& labels_BT,
    int64_t vocab_size,
    const DividedParameter* vocabulary);

/// See `causal_labels`. Shifts labels rather than logits, which are larger by
/// the size of the vocabulary.
at::Tensor next_labels(const at::Tensor& labels_BT, const PackedRows* packed);

} // namespace accelerate::models
