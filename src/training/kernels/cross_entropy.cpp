// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "accelerate/error.h"
#include "accelerate/training/kernels.h"
#include "core/base/str.h"
#include "training/kernels/operator.h"

namespace accelerate::kernels {
namespace {

/// The columns of the classes, in the dtype of the computation.
at::Tensor exact_logits(const at::Tensor& logits, int64_t num_classes) {
  return logits.narrow(1, 0, num_classes).to(exact_type(logits));
}

constexpr const char* kForward = "accelerate::_cross_entropy_forward";
constexpr const char* kBackward = "accelerate::_cross_entropy_backward";
constexpr const char* kBoth = "accelerate::_cross_entropy_with_gradient";
constexpr const char* kScale = "accelerate::_scale_unless_one_";

using Both = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    int64_t,
    int64_t);
using Scale = void(const at::Tensor&, const at::Tensor&);

const auto& both_operator() {
  static const auto handle = typed_operator<Both>(kBoth);
  return handle;
}

/// Whether the gradient is computed together with the loss. Not for float16,
/// whose range is sufficient only after the gradient is multiplied by the loss
/// scale.
bool makes_gradient_at_once(const at::Tensor& logits) {
  return at::GradMode::is_enabled() && logits.requires_grad() &&
         logits.scalar_type() != at::kHalf &&
         both_operator().hasKernelForDispatchKey(c10::computeDispatchKey(
             at::kFloat, at::kStrided, logits.device()));
}

class CrossEntropy final : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& labels,
      int64_t num_classes,
      int64_t ignored,
      bool makes_gradient) {
    const auto count = labels.ne(ignored).sum().to(exact_type(logits));
    at::Tensor losses;
    at::Tensor log_sums;
    if (makes_gradient) {
      at::Tensor gradient;
      std::tie(losses, log_sums, gradient) = both_operator().call(
          logits, labels, count.reciprocal(), num_classes, ignored);
      context->saved_data["gradient"] = std::move(gradient);
    } else {
      static const auto forward =
          typed_operator<decltype(plain_cross_entropy_forward)>(kForward);
      std::tie(losses, log_sums) =
          forward.call(logits, labels, num_classes, ignored);
    }
    context->save_for_backward({logits, labels, log_sums, count});
    context->saved_data["num_classes"] = num_classes;
    context->saved_data["ignored"] = ignored;
    return losses.sum() / count;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    static const auto backward =
        typed_operator<decltype(plain_cross_entropy_backward)>(kBackward);
    static const auto scale = typed_operator<Scale>(kScale);
    const auto saved = context->get_saved_variables();
    // Use the precomputed gradient only once. A second backward through a
    // retained graph recomputes it, because the gradient of the first may still
    // be in use.
    if (const auto made = context->saved_data.find("gradient");
        made != context->saved_data.end()) {
      auto gradient = made->second.toTensor();
      context->saved_data.erase(made);
      scale.call(gradient, gradients[0]);
      return {std::move(gradient), {}, {}, {}, {}};
    }
    auto gradient = backward.call(
        saved[0],
        saved[1],
        saved[2],
        gradients[0] / saved[3],
        context->saved_data["num_classes"].toInt(),
        context->saved_data["ignored"].toInt());
    return {std::move(gradient), {}, {}, {}, {}};
  }
};

at::Tensor mean_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored) {
  return CrossEntropy::apply(
      logits, labels, num_classes, ignored, makes_gradient_at_once(logits));
}

} // namespace

std::tuple<at::Tensor, at::Tensor> plain_cross_entropy_forward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored) {
  const auto exact = exact_logits(logits, num_classes);
  const auto is_ignored = labels.eq(ignored);
  const auto chosen =
      exact.gather(1, labels.masked_fill(is_ignored, 0).unsqueeze(1))
          .squeeze(1);
  const auto log_sums = exact.logsumexp(1);
  return {
      (log_sums - chosen).masked_fill(is_ignored, 0),
      log_sums.masked_fill(is_ignored, 0)};
}

at::Tensor plain_cross_entropy_backward(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& log_sums,
    const at::Tensor& factor,
    int64_t num_classes,
    int64_t ignored) {
  auto gradient =
      exact_logits(logits, num_classes).sub(log_sums.unsqueeze(1)).exp_();
  const auto counts = labels.ne(ignored).unsqueeze(1);
  gradient.scatter_add_(
      1,
      at::where(counts, labels.unsqueeze(1), 0),
      at::full_like(log_sums, -1).unsqueeze(1));
  gradient.mul_(at::where(counts, factor, at::zeros_like(factor)));
  return at::constant_pad_nd(gradient, {0, logits.size(1) - num_classes})
      .to(logits.scalar_type());
}

at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t num_classes,
    int64_t ignored) {
  if (logits.dim() != 2 || !logits.is_floating_point() || num_classes < 1 ||
      num_classes > logits.size(1) || labels.dim() != 1 ||
      labels.size(0) != logits.size(0) || labels.scalar_type() != at::kLong) {
    throw UsageError(str_cat(
        "[cross_entropy] Got logits ",
        c10::toString(logits.scalar_type()),
        logits.sizes(),
        ", labels ",
        c10::toString(labels.scalar_type()),
        labels.sizes(),
        " and ",
        num_classes,
        " classes. Pass floating-point logits with one column per class, and "
        "one Long label per row"));
  }
  return mean_cross_entropy(logits, labels, num_classes, ignored);
}

TORCH_LIBRARY(accelerate, library) {
  library.def(
      "cross_entropy(Tensor logits, Tensor labels, int num_classes, "
      "int ignored=-100) -> Tensor",
      cross_entropy);
  library.def(
      "_cross_entropy_forward(Tensor logits, Tensor labels, int num_classes, "
      "int ignored) -> (Tensor, Tensor)");
  library.def(
      "_cross_entropy_backward(Tensor logits, Tensor labels, Tensor log_sums, "
      "Tensor factor, int num_classes, int ignored) -> Tensor");
  library.def(
      "_cross_entropy_with_gradient(Tensor logits, Tensor labels, "
      "Tensor factor, int num_classes, int ignored) -> "
      "(Tensor, Tensor, Tensor)");
  library.def("_scale_unless_one_(Tensor(a!) values, Tensor number) -> ()");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_cross_entropy_forward", plain_cross_entropy_forward);
  library.impl("_cross_entropy_backward", plain_cross_entropy_backward);
}

} // namespace accelerate::kernels
