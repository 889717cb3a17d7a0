// SPDX-License-Identifier: Apache-2.0
// Divides torch's own modules. Their forward functions are not virtual, so the
// operators that they call look for divided parameters.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate {
namespace {

/// A key that core does not use. It is above autocast, which would replace the
/// parameters with copies.
constexpr auto kModulesKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

using Info = std::shared_ptr<const DividedParameter>;

thread_local int num_refusals = 0;
/// Those of the current forward; null outside of one.
thread_local const TensorRanks* ranks_of_forward = nullptr;

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

void check_features(const at::Tensor& x, const at::SymInt& num_features) {
  if (ranks_of_forward != nullptr) {
    ranks_of_forward->check_features(x, num_features.expect_int());
  }
}

bool is_last_transposed(const at::Tensor& tensor) {
  return last_transposed && last_transposed->tensor._unsafe_get_target() ==
                                tensor.unsafeGetTensorImpl();
}

Info take_transposed(const at::Tensor& tensor) {
  if (!is_last_transposed(tensor)) {
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
  if (const auto info = take_transposed(other)) {
    return whole_product(*info, x, other);
  }
  if (other.dim() == 2) {
    check_features(x, other.size(0));
  }
  return at::matmul(x, other);
}

at::Tensor mm(const at::Tensor& x, const at::Tensor& other) {
  const PlainOperators plain;
  if (const auto info = take_transposed(other)) {
    return whole_product(*info, x, other);
  }
  check_features(x, other.size(0));
  return at::mm(x, other);
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
    check_features(x, other.size(0));
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
    check_features(x, weight.size(-1));
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

/// Whether the function above it, or torch, computes right gradients if
/// this argument is a divided weight.
bool is_known(const std::string& name, size_t argument) {
  if (name == "aten::to" || name == "aten::type_as") {
    return argument > 0; // reads only the dtype and the device
  }
  return name == "aten::linear" || name == "aten::t" ||
         name == "aten::embedding" || name == "aten::detach";
}

/// The name of the divided weight; empty if the operator may have the tensor.
std::string misused_weight(
    const std::string& name,
    size_t argument,
    const at::Tensor& tensor) {
  // Ranks have different elements of a divided bias, as of the outputs that it
  // is added to.
  if (!tensor.defined() || tensor.dim() < 2) {
    return {};
  }
  const bool is_product =
      name == "aten::matmul" || name == "aten::mm" || name == "aten::addmm";
  if (is_last_transposed(tensor) ? is_product : is_known(name, argument)) {
    return {};
  }
  const auto info =
      is_last_transposed(tensor) ? last_transposed->info : divided(tensor);
  return info ? info->name : std::string();
}

thread_local std::string problem_of_watch;

// Torch catches exceptions of this function.
std::unique_ptr<at::ObserverContext> watch(const at::RecordFunction& call) {
  if (!problem_of_watch.empty() || !at::GradMode::is_enabled() ||
      c10::impl::tls_is_dispatch_key_excluded(kModulesKey)) {
    return nullptr;
  }
  const std::string name = call.name();
  const auto note = [&](size_t argument, const at::Tensor& tensor) {
    const auto weight = misused_weight(name, argument, tensor);
    if (!weight.empty()) {
      problem_of_watch = str_cat(
          "[forward] ",
          name,
          " cannot compute with '",
          weight,
          "', which tensor-parallel ranks divide. Call its module or "
          "torch::linear, or remove the module from the tensor plan");
    }
  };
  const auto inputs = call.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isTensor()) {
      note(i, inputs[i].toTensor());
    } else if (inputs[i].isTensorList()) {
      for (const at::Tensor& tensor : inputs[i].toTensorList()) {
        note(i, tensor);
      }
    }
  }
  return nullptr;
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

TensorForward::TensorForward(const TensorRanks& ranks)
    : before_(std::exchange(ranks_of_forward, &ranks)) {}
TensorForward::~TensorForward() {
  ranks_of_forward = before_;
}

WatchOperators::WatchOperators()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&watch).needsInputs(true).scopes(
              {at::RecordScope::FUNCTION}))) {
  problem_of_watch.clear();
}
WatchOperators::~WatchOperators() {
  at::removeCallback(handle_);
}
void WatchOperators::check() const {
  if (!problem_of_watch.empty()) {
    throw UsageError(std::exchange(problem_of_watch, {}));
  }
}

RefuseDropout::RefuseDropout() {
  ++num_refusals;
}
RefuseDropout::~RefuseDropout() {
  --num_refusals;
}

} // namespace accelerate
