// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/ema.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/accelerator/module_adapter.h"
#include "training/parallel/tensor_ranks.h"
#include "training/state/sliced_state.h"

namespace accelerate {
namespace {

/// The saved average, or this rank's part of it.
at::Tensor own_part(
    const StateDict& state,
    const std::string& name,
    const at::Tensor& average,
    const at::Tensor& parameter) {
  const auto info = divided(parameter);
  if (!info) {
    return state.get<at::Tensor>(name);
  }
  const bool is_slice =
      std::any_of(state.begin(), state.end(), [&](auto& item) {
        return item.first == name &&
               std::holds_alternative<TensorSlice>(item.second);
      });
  if (is_slice) {
    const auto& slice = state.get<TensorSlice>(name);
    return slice.pieces == info->pieces ? slice.values.view(average.sizes())
                                        : slice.values;
  }
  const auto& whole = state.get<at::Tensor>(name);
  return whole.sizes() == at::IntArrayRef(info->whole)
             ? elements_at(whole, info->pieces).view(average.sizes())
             : whole;
}

} // namespace

Ema::Ema(std::shared_ptr<torch::nn::Module> module, EmaOptions options)
    : module_(std::move(module)), options_(options) {
  if (!(options.decay >= 0 && options.decay <= 1)) {
    throw UsageError(
        str_cat("[Ema] decay is ", options.decay, ", expected 0 to 1"));
  }
  if (module_ == nullptr) {
    throw UsageError("[Ema] The module is a null pointer. Create it first");
  }
  auto set = parameters_of(*module_);
  names_ = std::move(set.names);
  parameters_ = std::move(set.parameters);
  for (const auto& parameter : parameters_) {
    const auto dtype = parameter.scalar_type();
    averages_.push_back(parameter.detach().to(
        at::isReducedFloatingType(dtype) ? at::kFloat : dtype,
        /*non_blocking=*/false,
        /*copy=*/true));
  }
}

void Ema::update() {
  if (is_swapped_) {
    throw UsageError(
        "[Ema] update() was called while the model contains the averages. "
        "Destroy the guard of evaluate() first");
  }
  const at::NoGradGuard no_grad;
  ++num_updates_;
  const auto n = static_cast<double>(num_updates_);
  const double decay = options_.warms_up
                           ? std::min(options_.decay, (1 + n) / (10 + n))
                           : options_.decay;
  for (size_t i = 0; i < averages_.size(); ++i) {
    const auto value = parameters_[i].detach().to(averages_[i].scalar_type());
    if (averages_[i].is_floating_point() || averages_[i].is_complex()) {
      averages_[i].lerp_(value, 1 - decay);
    } else {
      averages_[i].copy_(value);
    }
  }
}

Ema::Guard::Guard(Ema& ema) : ema_(ema) {
  if (ema.is_swapped_) {
    throw UsageError(
        "[Ema] The model already contains the averages. Destroy the other "
        "guard of evaluate() first");
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < ema.parameters_.size(); ++i) {
    own_.push_back(ema.parameters_[i].detach().clone());
    ema.parameters_[i].detach().copy_(ema.averages_[i]);
  }
  ema.is_swapped_ = true;
}

Ema::Guard::~Guard() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own_.size(); ++i) {
    ema_.parameters_[i].detach().copy_(own_[i]);
  }
  ema_.is_swapped_ = false;
}

// Callers also save the model, which currently contains the averages instead of
// its own weights.
StateDict Ema::state_dict() const {
  if (is_swapped_) {
    throw UsageError(
        "[Ema] state_dict() was called while the model contains the averages. "
        "Destroy the guard of evaluate() before you save");
  }
  StateDict state;
  state.set("num_updates", num_updates_);
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto name = str_cat("averages.", names_[i]);
    if (const auto info = divided(parameters_[i])) {
      state.set(name, TensorSlice{averages_[i], info->whole, info->pieces});
    } else {
      state.set(name, averages_[i]);
    }
  }
  return state;
}

void Ema::load_state_dict(const StateDict& state) {
  std::vector<at::Tensor> saved;
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto name = str_cat("averages.", names_[i]);
    saved.push_back(own_part(state, name, averages_[i], parameters_[i]));
    if (saved.back().sizes() != averages_[i].sizes()) {
      throw UsageError(str_cat(
          "[Ema] The saved average of '",
          names_[i],
          "' has shape ",
          saved.back().sizes(),
          " instead of ",
          averages_[i].sizes(),
          ". Load it into the same model"));
    }
  }
  num_updates_ = state.get<int64_t>("num_updates");
  for (size_t i = 0; i < saved.size(); ++i) {
    averages_[i].copy_(saved[i]);
  }
}

} // namespace accelerate
