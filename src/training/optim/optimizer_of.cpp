// SPDX-License-Identifier: Apache-2.0
#include "training/optim/optimizer_of.h"

#include <algorithm>

#include "core/observe/hint.h"

namespace accelerate::optim {
namespace {

/// The value of this name; null if it is missing or has another type.
template <class T>
const T* find_as(const StateDict& state, const std::string& name) {
  const auto found =
      std::find_if(state.begin(), state.end(), [&](const auto& entry) {
        return entry.first == name;
      });
  return found == state.end() ? nullptr : std::get_if<T>(&found->second);
}

} // namespace

std::vector<int64_t> shape_for(StateShape shape, const at::Tensor& parameter) {
  std::vector<int64_t> sizes = parameter.sizes().vec();
  switch (shape) {
    case StateShape::kParameter:
      break;
    case StateShape::kScalar:
      sizes.clear();
      break;
    case StateShape::kRow:
      sizes.back() = 1;
      break;
    case StateShape::kColumn:
      sizes[sizes.size() - 2] = 1;
      break;
  }
  return sizes;
}

double FieldReader::number(const std::string& name) const {
  const auto* whole = find_as<int64_t>(state_, name);
  return whole != nullptr ? static_cast<double>(*whole)
                          : state_.get<double>(name);
}

int64_t FieldReader::count(const std::string& name) const {
  const auto* held = find_as<at::Tensor>(state_, name);
  return held != nullptr && held->numel() == 1
             ? static_cast<int64_t>(held->item<double>())
             : state_.get<int64_t>(name);
}

at::Tensor FieldReader::tensor(const std::string& name) const {
  const auto* whole = find_as<int64_t>(state_, name);
  return whole != nullptr
             ? at::scalar_tensor(static_cast<double>(*whole), at::kFloat)
             : state_.get<at::Tensor>(name);
}

at::Tensor FieldReader::memory_for(const std::string& name) const {
  const auto* old = find_as<at::Tensor>(spare_, name);
  // The old state and `spare_` hold the tensor. If there are no other
  // references, no other code sees the change.
  constexpr size_t kOurHandles = 2;
  const bool is_free = old != nullptr && old->use_count() == kOurHandles &&
                       old->storage().use_count() == 1 &&
                       !old->requires_grad() &&
                       old->sizes() == parameter_.sizes() &&
                       old->strides() == parameter_.strides() &&
                       old->dtype() == parameter_.dtype() &&
                       old->device() == parameter_.device() &&
                       parameter_.is_non_overlapping_and_dense();
  return is_free ? *old
                 : at::empty_like(
                       parameter_, parameter_.options().requires_grad(false));
}

void FieldReader::operator()(
    const std::string& name,
    at::Tensor& value,
    StateShape shape,
    Presence presence) const {
  if (presence == Presence::kSometimes && !state_.contains(name)) {
    return;
  }
  const at::Tensor saved = tensor(name);
  const std::vector<int64_t> expected = shape_for(shape, parameter_);
  if (saved.sizes() != at::IntArrayRef(expected)) {
    throw UsageError(str_cat(
        "[load_optimizer_state] '",
        name,
        "' has shape ",
        saved.sizes(),
        ", expected ",
        at::IntArrayRef(expected)));
  }
  const at::NoGradGuard no_grad;
  if (shape == StateShape::kScalar) {
    value = saved.detach().to(
        saved.options().device(parameter_.device()), false, /*copy=*/true);
  } else if (shape == StateShape::kParameter) {
    check_dense(parameter_);
    value = memory_for(name).copy_(saved);
  } else {
    value = at::empty(expected, parameter_.options().requires_grad(false))
                .copy_(saved);
  }
}

void check_option(
    bool is_right,
    const char* optimizer,
    const char* option,
    double got,
    const char* expected) {
  if (!is_right) {
    throw UsageError(str_cat(
        '[', optimizer, "] ", option, " is ", got, ", expected ", expected));
  }
}

std::vector<std::vector<at::Tensor>> with_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* optimizer) {
  std::vector<std::vector<at::Tensor>> lists;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.layout() != at::kStrided) {
      throw UsageError(str_cat(
          '[',
          optimizer,
          "] The gradient of parameter ",
          i,
          " of shape ",
          parameter.sizes(),
          " is sparse, which this optimizer does not support. Create its "
          "Embedding with ",
          hint("sparse(false)", "sparse=False")));
    }
    const auto same = std::find_if(
        lists.begin(), lists.end(), [&](const std::vector<at::Tensor>& list) {
          return list[0].device() == parameter.device() &&
                 list[0].scalar_type() == parameter.scalar_type();
        });
    if (same != lists.end()) {
      same->push_back(parameter);
    } else {
      lists.emplace_back().reserve(parameters.size());
      lists.back().push_back(parameter);
    }
  }
  return lists;
}

at::Tensor aligned_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.strides() == parameter.strides()) {
    return gradient;
  }
  return at::empty_like(parameter).copy_(gradient);
}

void check_dense(const at::Tensor& parameter) {
  if (!parameter.is_non_overlapping_and_dense()) {
    throw UsageError(str_cat(
        "[step] A parameter of shape ",
        parameter.sizes(),
        " with strides ",
        parameter.strides(),
        " is not contiguous in memory. Create it with .clone()"));
  }
}

at::Tensor zeros_for(const at::Tensor& parameter) {
  check_dense(parameter);
  return at::zeros_like(parameter, parameter.options().requires_grad(false));
}

void check_scalars(
    const StepScalars& scalars,
    size_t num_groups,
    const char* optimizer) {
  const size_t num_rates = scalars.learning_rates.size();
  if (num_rates != 0 && num_rates != num_groups) {
    throw UsageError(str_cat(
        "[",
        optimizer,
        "] Got ",
        num_rates,
        " learning rates on the device for ",
        num_groups,
        " parameter groups. Pass one for each group"));
  }
}

void throw_no_archive(const char* optimizer) {
  throw UsageError(str_cat(
      '[',
      optimizer,
      "] This optimizer cannot be saved as a torch archive. Save "
      "optimizer_state(optimizer, named_parameters(*model)) instead"));
}

void throw_foreign_options(const char* optimizer, size_t group) {
  throw UsageError(str_cat(
      '[',
      optimizer,
      "] Parameter group ",
      group,
      " has the options of a different optimizer. Add groups with add_group"));
}

} // namespace accelerate::optim
