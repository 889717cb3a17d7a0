// SPDX-License-Identifier: Apache-2.0
#include "parallel/engine.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {

ParallelEngine::ParallelEngine(MemoryLayout layout, Mesh mesh)
    : layout_(std::move(layout)), mesh_(std::move(mesh)) {}

const TensorLayout& ParallelEngine::tensor_layout(
    const at::Tensor& /*parameter*/) const {
  static const TensorLayout whole;
  return whole;
}

std::optional<TensorPieces> ParallelEngine::pieces(
    const at::Tensor& parameter) const {
  const auto& layout = tensor_layout(parameter);
  if (!layout.is_divided()) {
    return std::nullopt;
  }
  return pieces_of(
      parameter.sizes().vec(), layout, mesh_.shape(), mesh_.group().rank());
}

at::Tensor ParallelEngine::gradient(const at::Tensor& parameter) const {
  return parameter.grad();
}

void ParallelEngine::scale_gradients(
    const std::vector<at::Tensor>& parameters,
    const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, wide;
  for (const auto& parameter : parameters) {
    if (auto own = gradient(parameter); own.defined()) {
      const bool is_wide = own.scalar_type() == at::kDouble;
      (is_wide ? wide : gradients).push_back(std::move(own));
    }
  }
  if (!gradients.empty()) {
    at::_foreach_mul_(gradients, factor.to(at::kFloat));
  }
  if (!wide.empty()) {
    at::_foreach_mul_(wide, factor.to(at::kDouble));
  }
}

StateValue ParallelEngine::saved(const at::Tensor& parameter) const {
  return parameter.detach();
}

void ParallelEngine::load(
    const at::Tensor& parameter,
    const StateValue& value) {
  const auto* whole = std::get_if<at::Tensor>(&value);
  if (whole == nullptr || whole->sizes() != parameter.sizes()) {
    throw UsageError(str_cat(
        "[load_state_dict] The model needs a tensor of shape ",
        parameter.sizes(),
        ", but the saved state has ",
        whole == nullptr ? "none" : str_cat("one of shape ", whole->sizes()),
        ". Was it saved for another model?"));
  }
  const at::NoGradGuard no_grad;
  parameter.detach().copy_(*whole);
}

std::vector<at::Tensor> ParallelEngine::whole_parameters(bool keep) {
  std::vector<at::Tensor> values;
  visit_whole_parameters(keep, [&](size_t place, const at::Tensor& value) {
    values.resize(std::max(values.size(), place + 1));
    // Copied if it would keep the memory of a whole unit alive.
    values[place] =
        value.nbytes() == value.storage().nbytes() ? value : value.clone();
  });
  return values;
}

StateValue ParallelEngine::saved_gradient(const at::Tensor& parameter) const {
  return gradient(parameter);
}

void ParallelEngine::load_gradient(
    const at::Tensor& parameter,
    const StateValue& value) {
  const auto& whole = std::get<at::Tensor>(value);
  at::Tensor target = parameter;
  target.mutable_grad() = whole.defined() ? whole.detach().to(
                                                parameter.device(),
                                                parameter.scalar_type(),
                                                /*non_blocking=*/false,
                                                /*copy=*/true)
                                          : at::Tensor();
}

} // namespace accelerate
