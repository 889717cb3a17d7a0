// SPDX-License-Identifier: Apache-2.0
// The losses that transformers chooses by the kind of labels.
//
// Labels outside of the range are refused where they are on the CPU. A GPU is
// not waited for: there the operator's own check ends the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

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

/// The same, where the logits of a token guess the label of the next one.
at::Tensor next_token_loss(
    const at::Tensor& logits_BTP,
    const at::Tensor& labels_BT,
    int64_t vocab_size);

/// The labels, of which those at place 0 do not count.
at::Tensor without_first_tokens(
    const at::Tensor& labels_BT,
    const at::Tensor& positions_BT);

} // namespace accelerate::models
