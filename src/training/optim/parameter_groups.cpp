// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/parameter_groups.h"

#include <torch/nn/module.h>

#include <cctype>
#include <set>

#include "accelerate/optim/optimizer_state.h"

namespace accelerate::optim {
namespace {

/// Whether a type such as "torch::nn::BatchNorm2dImpl" is a norm: its name ends
/// in Norm, ignoring the dimension and torch's "Impl".
bool is_norm(std::string type) {
  if (type.ends_with("Impl")) {
    type.resize(type.size() - 4);
  }
  if (type.size() > 2 && type.back() == 'd' &&
      std::isdigit(static_cast<unsigned char>(type[type.size() - 2])) != 0) {
    type.resize(type.size() - 2);
  }
  return type.ends_with("Norm");
}

std::set<void*> parameters_of_norms(const torch::nn::Module& model) {
  std::set<void*> found;
  const auto add = [&](const torch::nn::Module& module) {
    if (is_norm(module.name())) {
      for (const auto& parameter : module.parameters(/*recurse=*/false)) {
        found.insert(parameter.unsafeGetTensorImpl());
      }
    }
  };
  add(model);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    add(*module);
  }
  return found;
}

} // namespace

std::vector<ParameterGroup> split_groups(
    const torch::nn::Module& model,
    const ParameterRule& rule,
    ParameterGroup chosen) {
  ParameterGroup others;
  for (const auto& [name, parameter] : named_parameters(model)) {
    if (parameter.requires_grad()) {
      auto& group = rule(name, parameter) ? chosen : others;
      group.parameters.push_back(parameter);
    }
  }
  return {std::move(others), std::move(chosen)};
}

std::vector<ParameterGroup> no_decay_groups(const torch::nn::Module& model) {
  const std::set<void*> norms = parameters_of_norms(model);
  const auto has_no_decay = [&](const std::string& name,
                                const at::Tensor& parameter) {
    return parameter.dim() < 2 || name.ends_with("bias") ||
           norms.contains(parameter.unsafeGetTensorImpl());
  };
  return split_groups(model, has_no_decay, {.weight_decay = 0.0});
}

} // namespace accelerate::optim
