// SPDX-License-Identifier: Apache-2.0
// The losses that transformers chooses by the kind of labels.
//
// Labels outside of the range are refused where they are on the CPU. A GPU is
// not waited for: there the operator's own check ends the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "models/packed_rows.h"

namespace accelerate::models {

/// `problem_type` may be empty: see `PretrainedOptions`.
at::Tensor classification_loss(
    const at::Tensor& logits_BL,
    const at::Tensor& labels,
    const std::string& problem_type);

/// Mean over the labels that are not -100. `logits` may have padding behind the
/// vocabulary's columns (`project_to_vocabulary`).
at::Tensor token_loss(
    const at::Tensor& logits_BTP,
    const at::Tensor& labels_BT,
    int64_t vocab_size);

/// See `causal_labels`. Labels move instead of logits, which are larger by the
/// vocabulary.
at::Tensor next_labels(const at::Tensor& labels_BT, const PackedRows* packed);

} // namespace accelerate::models
