// SPDX-License-Identifier: Apache-2.0
#include "accelerate/metrics.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <cmath>

#include "accelerate/accelerator.h"
#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// Predicted classes and labels of real samples, one row each.
std::pair<at::Tensor, at::Tensor> counted_classes(
    const char* where,
    const at::Tensor& predictions,
    const at::Tensor& labels,
    int64_t ignored_label) {
  const bool are_scores =
      predictions.dim() == labels.dim() + 1 && predictions.dim() > 1;
  const auto classes = are_scores ? predictions.argmax(1) : predictions;
  if (classes.sizes() != labels.sizes()) {
    throw UsageError(str_cat(
        "[",
        where,
        "] The predictions have shape ",
        predictions.sizes(),
        ", but the labels have shape ",
        labels.sizes(),
        ". Pass class indices of the same shape, or scores with an additional "
        "class dimension (dim 1)"));
  }
  const bool are_of_one = are_scores && predictions.size(1) == 1;
  if (are_of_one || (!are_scores && predictions.is_floating_point())) {
    throw UsageError(str_cat(
        "[",
        where,
        "] The predictions have dtype ",
        predictions.scalar_type(),
        " and shape ",
        predictions.sizes(),
        ". Pass integer class indices, or scores with a class dimension "
        "(dim 1). For binary classification with a single score, pass "
        "score > 0.5"));
  }
  const auto counts = labels.ne(ignored_label);
  return {classes.masked_select(counts), labels.masked_select(counts)};
}

/// Checks classes on the CPU, where this does not wait for a device.
void check_classes(
    const char* where,
    const at::Tensor& classes,
    int64_t num_classes) {
  if (!classes.is_cpu() || classes.numel() == 0) {
    return;
  }
  const auto least = classes.min().item<int64_t>();
  const auto most = classes.max().item<int64_t>();
  if (least < 0 || most >= num_classes) {
    throw UsageError(str_cat(
        "[",
        where,
        "] The classes are ",
        least,
        " to ",
        most,
        ", expected 0 to ",
        num_classes - 1));
  }
}

at::Tensor two_sums(const at::Tensor& sum, const at::Tensor& weight) {
  return at::stack({sum.to(at::kDouble), weight.to(at::kDouble)});
}

double ratio(const at::Tensor& total) {
  if (!total.defined() || total[1].item<double>() == 0) {
    return std::nan("");
  }
  return total[0].item<double>() / total[1].item<double>();
}

} // namespace

int64_t num_loss_tokens(const at::Tensor& labels, int64_t ignored_label) {
  return labels.ne(ignored_label).sum().item<int64_t>();
}

Metric::Metric(const Accelerator& accelerator) : accelerator_(&accelerator) {}

void Metric::reset() {
  sums_ = at::Tensor();
}

at::Tensor Metric::real_rows(const at::Tensor& rows) const {
  const auto values = rows.detach();
  // A scalar belongs to the whole batch.
  const bool counts_alone =
      values.numel() == 1 && !accelerator_->is_in_repeated_batch();
  return values.dim() == 0 || counts_alone
             ? values
             : values.narrow(
                   0, 0, accelerator_->num_real_samples(values.size(0)));
}

void Metric::add(const at::Tensor& sums) {
  if (accelerator_->is_in_repeated_batch()) {
    return;
  }
  sums_ = sums_.defined() ? sums_.to(sums.device()) + sums : sums;
}

at::Tensor Metric::total() const {
  // A rank without a batch must contribute as many elements as the others.
  const auto& group = accelerator_->data_group();
  const int64_t own = sums_.defined() ? sums_.numel() : 0;
  const int64_t size = reduce(group, own, ReduceOp::kMax);
  if (size == 0) {
    return {};
  }
  return reduce(
      group,
      sums_.defined() ? sums_.to(at::kCPU, at::kDouble)
                      : at::zeros({size}, at::kDouble));
}

void Mean::update(const at::Tensor& values, const at::Tensor& weights) {
  const auto rows = real_rows(values).to(at::kDouble);
  if (!weights.defined()) {
    add(two_sums(rows.sum(), at::full_like(rows.sum(), rows.numel())));
    return;
  }
  if (!at::is_expandable_to(weights.sizes(), values.sizes())) {
    throw UsageError(str_cat(
        "[Mean] The weights have shape ",
        weights.sizes(),
        ", but the values have shape ",
        values.sizes(),
        ". Pass weights of the same shape, or of a shape that expands to it"));
  }
  const auto scale =
      real_rows(weights.to(values.device()).expand(values.sizes()))
          .to(at::kDouble);
  add(two_sums((rows * scale).sum(), scale.sum()));
}

void Mean::update(double value, double weight) {
  add(at::tensor({value * weight, weight}, at::kDouble));
}

double Mean::compute() const {
  return ratio(total());
}

void Accuracy::update(const at::Tensor& predictions, const at::Tensor& labels) {
  const auto [found, wanted] = counted_classes(
      "Accuracy", real_rows(predictions), real_rows(labels), ignored_label_);
  const auto num_right = found.eq(wanted).sum();
  add(two_sums(num_right, at::full_like(num_right, wanted.numel())));
}

double Accuracy::compute() const {
  return ratio(total());
}

F1::F1(const Accelerator& accelerator, F1Options options)
    : Metric(accelerator), options_(options) {
  const bool is_binary = options.average == F1Average::kBinary;
  constexpr int64_t kMostClasses = int64_t{1} << 24;
  if (options.num_classes < 2 || options.num_classes > kMostClasses ||
      (is_binary && options.num_classes > 2)) {
    throw UsageError(str_cat(
        "[F1] num_classes is ",
        options.num_classes,
        is_binary ? ", expected 2 with F1Average::kBinary. Choose a different "
                    "average for more than 2 classes"
                  : ", expected 2 to 2^24"));
  }
}

void F1::update(const at::Tensor& predictions, const at::Tensor& labels) {
  const auto [found, wanted] = counted_classes(
      "F1", real_rows(predictions), real_rows(labels), options_.ignored_label);
  const auto counts_of = [&](const at::Tensor& classes) {
    check_classes("F1", classes, options_.num_classes);
    return at::bincount(classes.to(at::kLong), {}, options_.num_classes);
  };
  const auto num_found = counts_of(found);
  const auto num_wanted = counts_of(wanted);
  add(at::stack({counts_of(wanted.masked_select(found.eq(wanted))),
                 num_found,
                 num_wanted})
          .flatten()
          .to(at::kDouble));
}

double F1::compute() const {
  const auto sums = total();
  if (!sums.defined() || sums.sum().item<double>() == 0) {
    return std::nan("");
  }
  const auto counts = sums.view({3, options_.num_classes});
  const auto& num_right = counts[0];
  const auto num_both = counts[1] + counts[2];
  // 0 / 0 becomes 0, for a class that does not occur.
  const auto scores = 2 * num_right / num_both.clamp_min(1);
  switch (options_.average) {
    case F1Average::kBinary:
      return scores[1].item<double>();
    case F1Average::kMacro:
      return scores.mean().item<double>();
    case F1Average::kWeighted:
      return ((scores * counts[2]).sum() / counts[2].sum()).item<double>();
    case F1Average::kMicro:
      break;
  }
  return (2 * num_right.sum() / num_both.sum()).item<double>();
}

void Perplexity::update(const at::Tensor& logits, const at::Tensor& labels) {
  const auto scores = real_rows(logits);
  const auto wanted = real_rows(labels).to(at::kLong);
  if (scores.dim() != wanted.dim() + 1 ||
      scores.sizes().slice(0, static_cast<size_t>(wanted.dim())) !=
          wanted.sizes()) {
    throw UsageError(str_cat(
        "[Perplexity] The logits have shape ",
        logits.sizes(),
        ", but the labels have shape ",
        labels.sizes(),
        ". Pass logits with the shape of the labels plus a last dimension for "
        "the classes"));
  }
  check_classes(
      "Perplexity",
      wanted.masked_select(wanted.ne(ignored_label_)),
      scores.size(-1));
  const auto loss = at::cross_entropy_loss(
      scores.flatten(0, -2).to(at::toOpMathType(scores.scalar_type())),
      wanted.flatten(),
      /*weight=*/{},
      at::Reduction::Sum,
      ignored_label_);
  add(two_sums(loss, wanted.ne(ignored_label_).sum()));
}

void Perplexity::update(double loss, int64_t num_tokens) {
  const auto weight = static_cast<double>(num_tokens);
  add(at::tensor({loss * weight, weight}, at::kDouble));
}

double Perplexity::compute() const {
  return std::exp(ratio(total()));
}

} // namespace accelerate
