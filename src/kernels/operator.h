// SPDX-License-Identifier: Apache-2.0
// What the operators of this module share: how the dispatcher knows them, and
// what they compute in.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate::kernels {

/// Looked up by name once, where the result is kept in a static.
template <class Function>
c10::TypedOperatorHandle<Function> typed_operator(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .template typed<Function>();
}

/// As errors name it.
inline std::string described(const at::Tensor& tensor) {
  return tensor.defined()
             ? str_cat(c10::toString(tensor.scalar_type()), tensor.sizes())
             : std::string("nothing");
}

/// Sums and statistics are computed in it, whatever type the numbers have.
inline at::ScalarType exact_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline bool is_autocast(const at::Tensor& tensor) {
  return tensor.defined() &&
         at::autocast::is_autocast_enabled(tensor.device().type());
}

/// As autocast gives a tensor to torch's products: in its type.
inline at::Tensor lowered(const at::Tensor& tensor) {
  if (!is_autocast(tensor)) {
    return tensor;
  }
  const auto device = tensor.device().type();
  return at::autocast::cached_cast(
      at::autocast::get_autocast_dtype(device), tensor, device);
}

/// As autocast gives tensors to torch's sums: all in the widest of their types.
/// Those that are undefined stay so.
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

/// What a backward gave; refuses to be differentiated.
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

/// The gradients that `work` gives, of which there is no derivative: kernels
/// know none, and what torch's operators would give in their place must not
/// depend on the device. `work` is given what was saved, which is read once: a
/// checkpoint gives it no second time.
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
