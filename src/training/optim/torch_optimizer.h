// SPDX-License-Identifier: Apache-2.0
// Adapts LibTorch's optimizers to the training step.
#pragma once

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "accelerate/error.h"
#include "accelerate/optimizers.h"
#include "core/base/str.h"
#include "training/optim/optimizer_step.h"
#include "training/optim/savable.h"

namespace accelerate {

/// Keeps a reference to the optimizer, which must outlive it.
class TorchOptimizer final : public OptimizerAdapter {
 public:
  explicit TorchOptimizer(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer),
        taker_(dynamic_cast<TakesStepScalars*>(&optimizer)) {}

  std::vector<at::Tensor> parameters() override {
    std::vector<at::Tensor> all;
    for (const auto& group : optimizer_.param_groups()) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    return all;
  }
  size_t num_groups() override { return optimizer_.param_groups().size(); }
  void replace(const std::vector<Replacement>& replacements) override;
  void divide_state(
      const std::string& name,
      const at::Tensor& parameter,
      const std::vector<int64_t>& whole,
      const TensorPieces& pieces) override;
  std::string why_no_slices() const override {
    if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) != nullptr) {
      return "searches along all parameters at once (LBFGS)";
    }
    return dynamic_cast<const optim::Muon*>(&optimizer_) != nullptr ||
                   dynamic_cast<const optim::Adafactor*>(&optimizer_) != nullptr
               ? "needs whole matrices (Muon, Adafactor)"
               : std::string();
  }
  bool takes_scalars() const override {
    return taker_ != nullptr && taker_->takes_scalars();
  }
  bool takes_copies() const override {
    return taker_ != nullptr && taker_->takes_copies();
  }
  std::string prepare_capture() override {
    return takes_scalars() ? std::string()
                           : OptimizerAdapter::prepare_capture();
  }
  std::vector<double> learning_rates() override {
    std::vector<double> rates;
    for (const auto& group : optimizer_.param_groups()) {
      rates.push_back(group.options().get_lr());
    }
    return rates;
  }
  void set_current_rates(const std::vector<double>& rates) override {
    auto& groups = optimizer_.param_groups();
    for (size_t i = 0; i < rates.size(); ++i) {
      groups[i].options().set_lr(rates[i]);
    }
  }
  bool has_all_state() override {
    const auto& state = optimizer_.state();
    if (state.empty()) { // it has stepped before and keeps no state
      return true;
    }
    const auto all = parameters();
    return std::all_of(all.begin(), all.end(), [&](const auto& parameter) {
      return !parameter.grad().defined() ||
             state.count(parameter.unsafeGetTensorImpl()) > 0;
    });
  }
  void step(const StepScalars& scalars) override {
    check_gradients();
    place_state();
    if (taker_ != nullptr) {
      taker_->give_scalars(scalars);
    }
    optimizer_.step();
  }
  // Does not call the optimizer's own function, which first detaches gradients
  // in place.
  void zero_grad(Zeroing how) override {
    for (auto& group : optimizer_.param_groups()) {
      for (auto& parameter : group.params()) {
        auto& gradient = parameter.mutable_grad();
        if (how == Zeroing::kDrop) {
          gradient.reset();
        } else if (gradient.defined()) {
          gradient.zero_();
        }
      }
    }
  }
  StateDict state(const NamedParameters& names) override {
    return optimizer_state(optimizer_, names);
  }
  void check_state(const NamedParameters& names, const StateDict& state)
      override {
    check_optimizer_state(optimizer_, names, state);
  }
  void load_state(const NamedParameters& names, const StateDict& state)
      override {
    load_optimizer_state(optimizer_, names, state);
  }

 private:
  // Called in every step, so it iterates over the groups instead of building a
  // list.
  void check_gradients() const {
    const auto& groups = std::as_const(optimizer_).param_groups();
    if (std::none_of(groups.begin(), groups.end(), [](const auto& group) {
          const auto& own = group.params();
          return std::any_of(own.begin(), own.end(), [](const auto& p) {
            return p.grad().defined();
          });
        })) {
      throw UsageError(
          "[step] No parameter of the optimizer has a gradient. Call "
          "accelerator.backward(loss) first, with a loss that depends on these "
          "parameters");
    }
  }

  // Moves state that was created or loaded before the model moved to its
  // device.
  void place_state() {
    if (std::exchange(is_placed_, true)) {
      return;
    }
    if (const auto state = savable(optimizer_)) {
      for (const auto& parameter : parameters()) {
        const auto kept = state->parameter_state(parameter);
        if (!parameter.is_cpu() && !kept.empty()) {
          state->load_parameter_state(parameter, kept);
        }
      }
    }
  }

  StateDict new_state(const Replacement& replacement) const;

  torch::optim::Optimizer& optimizer_;
  /// Null if the optimizer only accepts host scalars.
  TakesStepScalars* taker_;
  bool is_placed_ = false;
};

inline void TorchOptimizer::divide_state(
    const std::string& name,
    const at::Tensor& parameter,
    const std::vector<int64_t>& whole,
    const TensorPieces& pieces) {
  if (optimizer_.state().count(parameter.unsafeGetTensorImpl()) == 0) {
    return;
  }
  const auto known = savable(optimizer_);
  if (!known) {
    throw UsageError(str_cat(
        "[prepare] The optimizer already has state for '",
        name,
        "', but tensor-parallel ranks have divided this parameter. Prepare the "
        "model before you create the optimizer"));
  }
  const auto kept = known->parameter_state(parameter);
  StateDict state = kept;
  for (const auto& [key, value] : kept) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && tensor->sizes() == at::IntArrayRef(whole)) {
      state.set(key, elements_at(*tensor, pieces).view(parameter.sizes()));
    }
  }
  known->load_parameter_state(parameter, state);
}

/// The state that torch gives a tensor before the first step (e.g. in Adagrad),
/// for the tensor that is trained in its place. All elements are equal, so the
/// slice does not matter.
inline StateDict TorchOptimizer::new_state(
    const Replacement& replacement) const {
  const at::NoGradGuard no_grad;
  const auto known = savable(optimizer_);
  bool is_new = known != nullptr;
  const auto kept =
      known ? known->parameter_state(replacement.from) : StateDict();
  StateDict state = kept;
  for (const auto& [name, value] : kept) {
    if (const auto* count = std::get_if<int64_t>(&value)) {
      is_new = is_new && *count == 0;
    } else if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      const bool is_like = tensor->sizes() == replacement.from.sizes();
      const auto first = is_like && tensor->numel() > 0
                             ? tensor->flatten()[0]
                             : at::zeros({}, tensor->options());
      is_new = is_new && at::equal(*tensor, first.expand_as(*tensor));
      if (is_like) {
        state.set(name, at::zeros_like(replacement.to).fill_(first));
      }
    }
  }
  if (!is_new) {
    throw UsageError(str_cat(
        "[prepare] The optimizer already has state for '",
        replacement.name,
        "', but this run trains a different tensor instead. Prepare the model "
        "and the optimizer before the first step, and load state after "
        "prepare()"));
  }
  return state;
}

inline void TorchOptimizer::replace(
    const std::vector<Replacement>& replacements) {
  std::unordered_map<const c10::TensorImpl*, const Replacement*> by_tensor;
  std::vector<std::pair<at::Tensor, StateDict>> states;
  for (const auto& replacement : replacements) {
    if (optimizer_.state().count(replacement.from.unsafeGetTensorImpl()) > 0) {
      states.emplace_back(replacement.to, new_state(replacement));
    }
    by_tensor.emplace(replacement.from.unsafeGetTensorImpl(), &replacement);
  }
  for (const auto& [tensor, state] : states) {
    savable(optimizer_)->load_parameter_state(tensor, state);
  }
  for (const auto& replacement : replacements) {
    optimizer_.state().erase(replacement.from.unsafeGetTensorImpl());
  }
  for (auto& group : optimizer_.param_groups()) {
    for (auto& parameter : group.params()) {
      const auto found = by_tensor.find(parameter.unsafeGetTensorImpl());
      if (found != by_tensor.end()) {
        parameter = found->second->to;
      }
    }
  }
}

} // namespace accelerate
