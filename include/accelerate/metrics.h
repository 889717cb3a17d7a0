// SPDX-License-Identifier: Apache-2.0
// Metrics over all ranks that count each sample once.
//
// A metric accumulates the sums of this rank on the device, without waiting for
// the device, and `compute` reduces them over ranks. Samples that a loader
// repeated to complete the last batch are not counted, as in
// `Accelerator::gather_for_metrics`.
//
//     accelerate::Accuracy accuracy(accelerator);
//     for (auto& batch : eval_loader) {
//       accuracy.update(net(batch.x), batch.y);
//     }
//     accelerator.print("accuracy ", accuracy.compute());
//
// Call `update` in the loop over a prepared loader, with tensors that have one
// row per sample of the batch. If rows represent something else, such as tokens
// of packed batches, all rows count, unless the loader repeated the whole
// batch, as it does with batches of a `BatchSampler`. With such rows, `update`
// throws `UsageError` if the loader repeated only some of the samples. Scalars
// of a repeated batch do not count. `compute` is a collective that does not
// change the sums. It returns NaN if nothing was counted. `reset` clears the
// sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/export.h"

namespace accelerate {

class Accelerator;

/// The label that does not count, as in torch's losses.
inline constexpr int64_t kIgnoredLabel = -100;

/// Returns the number of labels in this tensor that count. This is the weight
/// of a loss that is the mean over these labels (`BackwardOptions::weight`).
/// The loss of a causal language model shifts labels by one, so the first label
/// of every sequence does not count. In this case, pass
/// `models::causal_labels(batch)` (`model_inputs.h`), or for padded batches
/// `labels.slice(1, 1)`.
///
///     accelerator.backward(
///         loss, {.weight = accelerate::num_loss_tokens(batch.labels)});
ACCELERATE_API int64_t num_loss_tokens(
    const at::Tensor& labels,
    int64_t ignored_label = kIgnoredLabel);

/// The base class of metrics, which stores their sums.
class ACCELERATE_API Metric {
 public:
  void reset();

 protected:
  /// `accelerator` must outlive the metric.
  explicit Metric(const Accelerator& accelerator);
  /// Removes the rows of repeated samples. Scalars are returned unchanged.
  at::Tensor real_rows(const at::Tensor& rows) const;
  /// Adds to the sums. Pass the same number of sums in every call.
  void add(const at::Tensor& sums);
  /// The sums over all ranks, as doubles on the CPU. Undefined if no rank has
  /// added anything.
  at::Tensor total() const;

 private:
  const Accelerator* accelerator_;
  at::Tensor sums_;
};

/// The mean of values, optionally weighted.
class ACCELERATE_API Mean : public Metric {
 public:
  explicit Mean(const Accelerator& accelerator) : Metric(accelerator) {}
  /// Every element counts. `weights` has the shape of `values`, or a shape that
  /// expands to it. Pass one loss per sample (`reduction` none), because the
  /// mean of a batch includes its repeated samples.
  void update(const at::Tensor& values, const at::Tensor& weights = {});
  void update(double value, double weight = 1);
  double compute() const;
};

/// The fraction of labels predicted correctly, from 0 to 1.
class ACCELERATE_API Accuracy : public Metric {
 public:
  explicit Accuracy(
      const Accelerator& accelerator,
      int64_t ignored_label = kIgnoredLabel)
      : Metric(accelerator), ignored_label_(ignored_label) {}
  /// `predictions` contains class indices and has the shape of `labels`, or it
  /// contains scores and has an additional dimension for classes at dim 1. The
  /// class with the largest score is the prediction. Throws `UsageError` on
  /// other shapes, on non-integer classes, and on scores of a single class.
  void update(const at::Tensor& predictions, const at::Tensor& labels);
  double compute() const;

 private:
  int64_t ignored_label_;
};

/// How the scores of classes are averaged.
enum class F1Average {
  /// The score of class 1.
  kBinary,
  /// The mean over classes.
  kMacro,
  /// The score computed from the counts of all classes together.
  kMicro,
  /// The mean over classes, weighted by the number of labels of each.
  kWeighted,
};

struct ACCELERATE_API F1Options {
  /// Labels and predictions range from 0 to `num_classes - 1`.
  int64_t num_classes = 2;
  F1Average average = F1Average::kBinary;
  int64_t ignored_label = kIgnoredLabel;
};

/// The harmonic mean of precision and recall, as computed by scikit-learn's
/// `f1_score` with all classes as labels. It is 0 for a class that is neither
/// predicted nor a label.
class ACCELERATE_API F1 : public Metric {
 public:
  /// Throws `UsageError` if there are fewer than 2 classes, or more than 2 with
  /// `F1Average::kBinary`.
  explicit F1(const Accelerator& accelerator, F1Options options = {});
  /// Takes the same arguments as `Accuracy::update`. A class out of range
  /// causes a `UsageError` on the CPU and a device-side assertion elsewhere.
  void update(const at::Tensor& predictions, const at::Tensor& labels);
  double compute() const;

 private:
  F1Options options_;
};

/// The exponential of the mean loss per token.
class ACCELERATE_API Perplexity : public Metric {
 public:
  explicit Perplexity(
      const Accelerator& accelerator,
      int64_t ignored_label = kIgnoredLabel)
      : Metric(accelerator), ignored_label_(ignored_label) {}
  /// Takes logits of shape B x T x V, and labels of shape B x T that match the
  /// logits position by position. For a causal model, pass
  /// `models::causal_labels`. Throws `UsageError` on other shapes and, on the
  /// CPU, if a label is not below V.
  void update(const at::Tensor& logits, const at::Tensor& labels);
  /// Takes a loss that is the mean over `num_tokens` tokens.
  void update(double loss, int64_t num_tokens);
  double compute() const;

 private:
  int64_t ignored_label_;
};

} // namespace accelerate
