// SPDX-License-Identifier: Apache-2.0
#include "models/losses.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "accelerate/models/model_inputs.h"
#include "accelerate/training/kernels.h"
#include "core/base/str.h"

namespace accelerate::models {
namespace {

constexpr int64_t kIgnored = -100;

void check_range(const at::Tensor& labels, int64_t num_classes) {
  if (!labels.is_cpu() || labels.numel() == 0) {
    return;
  }
  const auto is_wrong =
      labels.ge(num_classes)
          .logical_or(labels.lt(0).logical_and(labels.ne(kIgnored)));
  if (is_wrong.any().item<bool>()) {
    throw UsageError(str_cat(
        "[forward] Label ",
        labels.masked_select(is_wrong)[0].item<int64_t>(),
        " is out of range, expected 0 to ",
        num_classes - 1,
        ", or -100 to ignore it. Pass the number of classes to "
        "from_pretrained, or correct the labels"));
  }
}

// Checks and returns the labels: one class per row of logits.
at::Tensor classes_of(
    const at::Tensor& labels,
    const at::Tensor& logits,
    int64_t num_classes) {
  auto classes = labels.reshape({-1}).to(at::kLong);
  const int64_t num_rows = logits.numel() / logits.size(-1);
  if (num_rows != classes.size(0)) {
    throw UsageError(str_cat(
        "[forward] labels has shape ",
        labels.sizes(),
        ", expected one label for each of the ",
        num_rows,
        " rows of logits"));
  }
  check_range(classes, num_classes);
  return classes;
}

} // namespace

at::Tensor classification_loss(
    const at::Tensor& logits_BL,
    const at::Tensor& labels,
    const std::string& problem_type) {
  const bool is_whole =
      labels.scalar_type() == at::kLong || labels.scalar_type() == at::kInt;
  const std::string type = !problem_type.empty()     ? problem_type
                           : logits_BL.size(-1) == 1 ? "regression"
                           : is_whole ? "single_label_classification"
                                      : "multi_label_classification";
  if (type == "single_label_classification") {
    return at::cross_entropy_loss(
        logits_BL,
        classes_of(labels, logits_BL, logits_BL.size(-1)),
        {},
        at::Reduction::Mean,
        kIgnored);
  }
  if (labels.numel() != logits_BL.numel()) {
    throw UsageError(str_cat(
        "[forward] labels has shape ",
        labels.sizes(),
        ", but the logits have shape ",
        logits_BL.sizes(),
        ". They must be equal for ",
        type));
  }
  const auto targets = labels.to(logits_BL.scalar_type()).view_as(logits_BL);
  return type == "regression"
             ? at::mse_loss(logits_BL, targets)
             : at::binary_cross_entropy_with_logits(logits_BL, targets);
}

at::Tensor token_loss(
    const at::Tensor& logits_BTP,
    const at::Tensor& labels_BT,
    int64_t vocab_size,
    const DividedParameter* vocabulary) {
  const auto logits_NP = logits_BTP.reshape({-1, logits_BTP.size(-1)});
  const auto labels_N = classes_of(labels_BT, logits_BTP, vocab_size);
  return vocabulary != nullptr
             ? divided_cross_entropy(*vocabulary, logits_NP, labels_N, kIgnored)
             : kernels::cross_entropy(
                   logits_NP, labels_N, vocab_size, kIgnored);
}

at::Tensor next_labels(const at::Tensor& labels_BT, const PackedRows* packed) {
  // The last token of a packed sequence does not predict the first of the next.
  const auto counted_BT =
      packed == nullptr
          ? labels_BT
          : labels_BT.masked_fill(packed->positions_1T().eq(0), kIgnored);
  return at::constant_pad_nd(counted_BT, {0, 1}, kIgnored)
      .narrow(1, 1, labels_BT.size(1));
}

at::Tensor causal_labels(const ModelInputs& inputs) {
  const auto& labels_BT = inputs.labels;
  if (!labels_BT.defined() || labels_BT.dim() != 2) {
    throw UsageError(str_cat(
        "[causal_labels] labels is ",
        labels_BT.defined() ? str_cat("of shape ", labels_BT.sizes())
                            : "missing",
        ", expected token ids of shape [batch, tokens]"));
  }
  if (!inputs.packed_mask.defined()) {
    return next_labels(labels_BT, nullptr);
  }
  const PackedRows packed(inputs.packed_mask, labels_BT.size(1));
  return next_labels(labels_BT, &packed);
}

} // namespace accelerate::models
