// SPDX-License-Identifier: Apache-2.0
// The base of this library's optimizers. Each optimizer's file instantiates it.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

#include "accelerate/error.h"
#include "accelerate/optimizers.h"
#include "core/base/str.h"
#include "training/optim/fields.h"

namespace accelerate::optim {

/// Throws a `UsageError` that names the optimizer and the option unless
/// `is_right`.
void check_option(
    bool is_right,
    const char* optimizer,
    const char* option,
    double got,
    const char* expected);

/// Specialised for each optimizer: throws if an option is out of range.
template <class Options>
void check_options(const Options& options);

/// Checks the options that all optimizers have.
template <class Options>
void check_lr_and_decay(const Options& options) {
  check_option(options.lr >= 0, Options::kName, "lr", options.lr, "0 or more");
  check_option(
      options.weight_decay >= 0,
      Options::kName,
      "weight_decay",
      options.weight_decay,
      "0 or more");
}
template <class Options>
void check_betas(const Options& options, bool one_is_allowed = false) {
  for (const double beta : {options.betas.first, options.betas.second}) {
    check_option(
        beta >= 0 && (beta < 1 || (one_is_allowed && beta == 1)),
        Options::kName,
        "betas",
        beta,
        "a number from 0 to below 1");
  }
}

/// The parameters that have a gradient, in one list per device and dtype.
/// Throws `UsageError` on a sparse gradient.
std::vector<std::vector<at::Tensor>> with_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* optimizer);

/// The gradient in the memory layout of the parameter, because fused operators
/// process raw memory.
at::Tensor aligned_gradient(const at::Tensor& parameter);
/// Throws `UsageError` if there are gaps in the parameter's memory.
void check_dense(const at::Tensor& parameter);
/// Zeros in the memory layout of the parameter, which must be dense.
at::Tensor zeros_for(const at::Tensor& parameter);

/// Throws `UsageError` if `scalars` has learning rates, but not one per group.
void check_scalars(
    const StepScalars& scalars,
    size_t num_groups,
    const char* optimizer);

[[noreturn]] void throw_no_archive(const char* optimizer);
[[noreturn]] void throw_foreign_options(const char* optimizer, size_t group);

template <class Options>
GroupOptions<Options> options_for(
    Options options,
    const ParameterGroup& group) {
  options.lr = group.lr.value_or(options.lr);
  options.weight_decay = group.weight_decay.value_or(options.weight_decay);
  check_options(options);
  return GroupOptions<Options>(std::move(options));
}

template <class Options, class State>
OptimizerOf<Options, State>::OptimizerOf(
    std::vector<at::Tensor> parameters,
    Options options)
    : OptimizerOf(
          std::vector<ParameterGroup>{{.parameters = std::move(parameters)}},
          std::move(options)) {}

template <class Options, class State>
OptimizerOf<Options, State>::OptimizerOf(
    const std::vector<ParameterGroup>& groups,
    Options options)
    : torch::optim::Optimizer(
          std::vector<torch::optim::OptimizerParamGroup>{},
          std::make_unique<GroupOptions<Options>>(std::move(options))) {
  for (const auto& group : groups) {
    add_group(group);
  }
}

template <class Options, class State>
void OptimizerOf<Options, State>::add_group(const ParameterGroup& group) {
  const auto& defaults =
      static_cast<const GroupOptions<Options>&>(this->defaults());
  add_param_group(torch::optim::OptimizerParamGroup(
      group.parameters, options_for(defaults.values, group).clone()));
}

template <class Options, class State>
void OptimizerOf<Options, State>::add_param_group(
    const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  if (group.has_options()) {
    param_groups_.back().set_options(group.options().clone());
  }
}

template <class Options, class State>
at::Tensor OptimizerOf<Options, State>::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  check_scalars(scalars_, param_groups_.size(), Options::kName);
  for (group_ = 0; group_ < param_groups_.size(); ++group_) {
    for (const auto& parameters :
         with_gradients(param_groups_[group_].params(), Options::kName)) {
      update(options(group_), parameters);
    }
  }
  scalars_ = {};
  return loss;
}

template <class Options, class State>
void OptimizerOf<Options, State>::give_scalars(StepScalars scalars) {
  scalars_ = std::move(scalars);
}

template <class Options, class State>
at::Tensor OptimizerOf<Options, State>::learning_rate() const {
  return scalars_.learning_rates.empty() ? at::Tensor()
                                         : scalars_.learning_rates[group_];
}

template <class Options, class State>
Options& OptimizerOf<Options, State>::options(size_t group) {
  auto* options =
      dynamic_cast<GroupOptions<Options>*>(&param_groups_.at(group).options());
  if (options == nullptr) {
    throw_foreign_options(Options::kName, group);
  }
  return options->values;
}

template <class Options, class State>
const Options& OptimizerOf<Options, State>::options(size_t group) const {
  return const_cast<OptimizerOf*>(this)->options(group);
}

template <class Options, class State>
State& OptimizerOf<Options, State>::state_of(const at::Tensor& parameter) {
  auto& state = state_[parameter.unsafeGetTensorImpl()];
  if (!state) {
    state = std::make_unique<State>();
  }
  return static_cast<State&>(*state);
}

template <class Options, class State>
std::string OptimizerOf<Options, State>::kind() const {
  return Options::kName;
}

template <class Options, class State>
StateDict OptimizerOf<Options, State>::group_state(size_t group) const {
  return write_fields(options(group));
}

template <class Options, class State>
void OptimizerOf<Options, State>::load_group_state(
    size_t group,
    const StateDict& state) {
  Options loaded = options(group);
  read_fields(loaded, state);
  check_options(loaded);
  options(group) = loaded;
}

template <class Options, class State>
StateDict OptimizerOf<Options, State>::parameter_state(
    const at::Tensor& parameter) const {
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  return found == state_.end()
             ? StateDict()
             : write_fields(static_cast<const State&>(*found->second));
}

template <class Options, class State>
void OptimizerOf<Options, State>::load_parameter_state(
    const at::Tensor& parameter,
    const StateDict& state) {
  auto loaded = std::make_unique<State>();
  read_fields(*loaded, state, parameter, parameter_state(parameter));
  state_[parameter.unsafeGetTensorImpl()] = std::move(loaded);
}

template <class Options, class State>
void OptimizerOf<Options, State>::save(torch::serialize::OutputArchive&) const {
  throw_no_archive(Options::kName);
}
template <class Options, class State>
void OptimizerOf<Options, State>::load(torch::serialize::InputArchive&) {
  throw_no_archive(Options::kName);
}

/// The state of one moving average, for SGD and Muon.
struct MomentumState
    : torch::optim::OptimizerCloneableParamState<MomentumState> {
  at::Tensor momentum_buffer;
};

template <>
struct Fields<MomentumState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("momentum_buffer", self.momentum_buffer, StateShape::kParameter);
  }
};

} // namespace accelerate::optim
