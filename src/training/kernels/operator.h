// SPDX-License-Identifier: Apache-2.0
// Helpers of the operators in this module: dispatcher lookup, and the dtypes in
// which they compute.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::kernels {

/// Looks up an operator by name. Callers keep the result in a static variable.
template <class Function>
c10::TypedOperatorHandle<Function> typed_operator(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .template typed<Function>();
}

/// A description for error messages.
inline std::string described(const at::Tensor& tensor) {
  return tensor.defined()
             ? str_cat(c10::toString(tensor.scalar_type()), tensor.sizes())
             : std::string("nothing");
}

/// The dtype of sums and statistics for an input of any dtype.
inline at::ScalarType exact_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline bool is_autocast(const at::Tensor& tensor) {
  return tensor.defined() &&
         at::autocast::is_autocast_enabled(tensor.device().type());
}

/// Casts a tensor to autocast's dtype, as autocast does for torch's matrix
/// products.
inline at::Tensor lowered(const at::Tensor& tensor) {
  if (!is_autocast(tensor)) {
    return tensor;
  }
  const auto device = tensor.device().type();
  return at::autocast::cached_cast(
      at::autocast::get_autocast_dtype(device), tensor, device);
}

/// Casts tensors to the widest of their dtypes, as autocast does for torch's
/// sums. Undefined tensors stay undefined.
template <class... Tensors>
void widen_together(at::Tensor& first, Tensors&... others) {
  if (!is_autocast(first)) {
    return;
  }
  auto type = first.scalar_type();
  const auto look = [&](const at::Tensor& other) {
    if (other.defined() && other.is_floating_point()) {
      type = c10::promoteTypes(type, other.scalar_type());
    }
  };
  const auto widen = [&](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) {
      tensor = tensor.to(type);
    }
  };
  (look(others), ...);
  widen(first);
  (widen(others), ...);
}

/// The result of a backward pass. Throws if it is differentiated.
class OnceDifferentiable final
    : public torch::autograd::Function<OnceDifferentiable> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context,
      const std::string& operation,
      at::TensorList results,
      at::TensorList /*depends_on*/) {
    context->saved_data["operation"] = operation;
    return results.vec();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& /*gradients*/) {
    throw UsageError(str_cat(
        "[",
        context->saved_data["operation"].toStringRef(),
        "] Second derivatives are not supported. Use torch's own operators"));
  }
};

/// Computes gradients by `work` that are not differentiable: the kernels have
/// no second derivatives, and the result must not depend on the device. `work`
/// receives the saved tensors. They are read only once, because a checkpoint
/// returns them only once.
template <class Work>
torch::autograd::variable_list once_differentiable(
    const char* operation,
    torch::autograd::AutogradContext* context,
    const torch::autograd::variable_list& gradients,
    Work&& work) {
  const auto saved = context->get_saved_variables();
  if (!at::GradMode::is_enabled()) {
    return work(saved);
  }
  torch::autograd::variable_list results;
  {
    const at::NoGradGuard no_grad;
    results = work(saved);
  }
  torch::autograd::variable_list given, depends_on;
  for (const auto& result : results) {
    if (result.defined()) {
      given.push_back(result);
    }
  }
  for (const auto& list : {gradients, saved}) {
    for (const auto& tensor : list) {
      if (tensor.defined()) {
        depends_on.push_back(tensor);
      }
    }
  }
  given = OnceDifferentiable::apply(
      std::string(operation),
      at::TensorList(given),
      at::TensorList(depends_on));
  size_t next = 0;
  for (auto& result : results) {
    if (result.defined()) {
      result = given[next++];
    }
  }
  return results;
}

} // namespace accelerate::kernels
