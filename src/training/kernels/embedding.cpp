// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "accelerate/error.h"
#include "accelerate/training/kernels.h"
#include "core/base/str.h"
#include "training/kernels/operator.h"

namespace accelerate::kernels {
namespace {

using torch::autograd::variable_list;

class Embedding final : public torch::autograd::Function<Embedding> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& weight,
      const at::Tensor& ids,
      int64_t padding) {
    context->save_for_backward({ids});
    context->saved_data["num_rows"] = weight.size(0);
    context->saved_data["padding"] = padding;
    return at::embedding(weight, ids, padding);
  }

  static variable_list backward(
      torch::autograd::AutogradContext* context,
      const variable_list& gradients) {
    const auto work = [&](const variable_list& saved) -> variable_list {
      static const auto handle =
          typed_operator<decltype(plain_embedding_backward)>(
              "accelerate::_embedding_backward");
      return {
          handle.call(
              gradients[0],
              saved[0],
              context->saved_data["num_rows"].toInt(),
              context->saved_data["padding"].toInt()),
          {},
          {}};
    };
    return once_differentiable("embedding", context, gradients, work);
  }
};

} // namespace

at::Tensor plain_embedding_backward(
    const at::Tensor& gradient,
    const at::Tensor& ids,
    int64_t num_rows,
    int64_t padding) {
  return at::embedding_dense_backward(
      gradient, ids, num_rows, padding, /*scale_grad_by_freq=*/false);
}

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    std::optional<int64_t> padding) {
  if (weight.dim() != 2 || !weight.is_floating_point() ||
      (ids.scalar_type() != at::kLong && ids.scalar_type() != at::kInt) ||
      (padding && (*padding < 0 || *padding >= weight.size(0)))) {
    throw UsageError(str_cat(
        "[embedding] Got a table ",
        c10::toString(weight.scalar_type()),
        weight.sizes(),
        ", ids ",
        c10::toString(ids.scalar_type()),
        padding ? str_cat(" and padding ", *padding) : "",
        ". Pass a floating-point table of shape [rows, channels], int32 or "
        "int64 ids, and the index of a row as padding"));
  }
  return Embedding::apply(weight, ids, padding.value_or(-1));
}

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def(
      "embedding(Tensor weight, Tensor ids, int? padding=None) -> Tensor",
      embedding);
  library.def(
      "_embedding_backward(Tensor gradient, Tensor ids, int num_rows, "
      "int padding) -> Tensor");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_embedding_backward", plain_embedding_backward);
}

} // namespace accelerate::kernels
