// SPDX-License-Identifier: Apache-2.0
// Divides torch's own modules. Their forward functions are not virtual, so the
// operators that they call look for divided parameters.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <optional>

#include "accelerate/error.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate {
namespace {

/// A key that core does not use. It is above autocast, which would replace the
/// parameters with copies.
constexpr auto kModulesKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

using Info = std::shared_ptr<const DividedParameter>;

thread_local int num_refusals = 0;

/// `torch::nn::Linear` multiplies by the transposed weight. This is the last
/// one, until it is multiplied.
struct Transposed {
  WeakTensor tensor;
  Info info;
};
thread_local std::optional<Transposed> last_transposed;

// Backward also multiplies by weights, but not as a layer does. A recomputed
// forward inside of it records gradients.
bool is_in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1 &&
         !at::GradMode::is_enabled();
}

Info take_transposed(const at::Tensor& tensor) {
  if (!last_transposed || last_transposed->tensor._unsafe_get_target() !=
                              tensor.unsafeGetTensorImpl()) {
    return nullptr;
  }
  auto info = std::move(last_transposed->info);
  last_transposed.reset();
  return info;
}

/// The product of a whole layer. No rank needs all outputs of a projection to
/// the vocabulary in our models, but other modules expect them.
at::Tensor whole_product(
    const DividedParameter& info,
    const at::Tensor& x,
    const at::Tensor& transposed) {
  auto product =
      leave_divided(info, at::matmul(enter_divided(info, x), transposed));
  return info.split.is_vocabulary ? info.ranks->gather(product, info.whole[0])
                                  : product;
}

at::Tensor transpose(const at::Tensor& tensor) {
  const PlainOperators plain;
  auto transposed = at::t(tensor);
  if (!is_in_backward()) {
    if (auto info = divided(tensor)) {
      last_transposed =
          Transposed{WeakTensor(transposed.getIntrusivePtr()), std::move(info)};
    }
  }
  return transposed;
}

at::Tensor matmul(const at::Tensor& x, const at::Tensor& other) {
  const PlainOperators plain;
  const auto info = take_transposed(other);
  return info ? whole_product(*info, x, other) : at::matmul(x, other);
}

at::Tensor mm(const at::Tensor& x, const at::Tensor& other) {
  const PlainOperators plain;
  const auto info = take_transposed(other);
  return info ? whole_product(*info, x, other) : at::mm(x, other);
}

at::Tensor addmm(
    const at::Tensor& bias,
    const at::Tensor& x,
    const at::Tensor& other,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const PlainOperators plain;
  const auto info = take_transposed(other);
  if (!info) {
    return at::addmm(bias, x, other, beta, alpha);
  }
  const auto product = whole_product(*info, x, other);
  return at::add(product.mul(alpha), bias.to(product.scalar_type()), beta);
}

at::Tensor linear(
    const at::Tensor& x,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  const PlainOperators plain;
  const auto info = divided(weight);
  if (!info || is_in_backward()) {
    return at::linear(x, weight, bias);
  }
  const auto product = whole_product(*info, x, weight.t());
  return bias && bias->defined() ? product + bias->to(product.scalar_type())
                                 : product;
}

at::Tensor embedding(
    const at::Tensor& weight,
    const at::Tensor& ids,
    c10::SymInt padding,
    bool scales_by_frequency,
    bool is_sparse) {
  const PlainOperators plain;
  const auto info = divided(weight);
  if (!info) {
    return at::embedding_symint(
        weight, ids, std::move(padding), scales_by_frequency, is_sparse);
  }
  if (scales_by_frequency) {
    throw UsageError(
        "[forward] A divided embedding cannot scale gradients by frequency. "
        "Create it with scale_grad_by_freq(false)");
  }
  const auto row = padding.expect_int();
  return divided_embedding(
      *info, weight, ids, row < 0 ? std::nullopt : std::optional<int64_t>(row));
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  if (num_refusals > 0 && train && p > 0) {
    throw UsageError(
        "[forward] Ranks in threads share one random generator, but "
        "tensor-parallel ranks need equal dropout. Use processes, or set "
        "dropout to 0");
  }
  const PlainOperators plain;
  return at::dropout(input, p, train);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  library.impl("t", TORCH_FN(transpose));
  library.impl("matmul", TORCH_FN(matmul));
  library.impl("mm", TORCH_FN(mm));
  library.impl("addmm", TORCH_FN(addmm));
  library.impl("linear", TORCH_FN(linear));
  library.impl("embedding", TORCH_FN(embedding));
  library.impl("dropout", TORCH_FN(dropout));
}

} // namespace

void divide_torch_modules() {
  c10::impl::tls_set_dispatch_key_included(kModulesKey, true);
}

PlainOperators::PlainOperators()
    : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kModulesKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kModulesKey, true);
}
PlainOperators::~PlainOperators() {
  c10::impl::tls_set_dispatch_key_excluded(kModulesKey, was_excluded_);
}

RefuseDropout::RefuseDropout() {
  ++num_refusals;
}
RefuseDropout::~RefuseDropout() {
  --num_refusals;
}

} // namespace accelerate
