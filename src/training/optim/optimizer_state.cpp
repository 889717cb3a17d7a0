// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/optimizer_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/optim/savable.h"

namespace accelerate {
namespace {

std::shared_ptr<SavableOptimizer> savable_or_throw(
    torch::optim::Optimizer& optimizer,
    const char* where) {
  if (auto found = savable(optimizer)) {
    return found;
  }
  throw UsageError(str_cat(
      '[',
      where,
      "] The state of this optimizer (LBFGS, or your own class) cannot be read "
      "by name. Use an optimizer from accelerate::optim, or Adam, AdamW, SGD, "
      "RMSprop or Adagrad from torch::optim, or derive your class from "
      "accelerate::SavableOptimizer"));
}

/// The names of each group's parameters, in the group's order.
std::vector<std::vector<std::string>> names_of_groups(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const char* where) {
  std::unordered_map<void*, const std::string*> name_of;
  for (const auto& [name, parameter] : names) {
    name_of.emplace(parameter.unsafeGetTensorImpl(), &name);
  }
  std::vector<std::vector<std::string>> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& list = groups.emplace_back();
    for (const auto& parameter : group.params()) {
      const auto found = name_of.find(parameter.unsafeGetTensorImpl());
      if (found == name_of.end()) {
        throw UsageError(str_cat(
            '[',
            where,
            "] Parameter ",
            list.size(),
            " of group ",
            groups.size() - 1,
            ", of shape ",
            parameter.sizes(),
            ", is not in the list of names. Pass the named_parameters of the "
            "model that the optimizer trains"));
      }
      list.push_back(*found->second);
    }
  }
  return groups;
}

std::string group_key(size_t group) {
  return str_cat("groups.", group);
}

size_t num_groups(const StateDict& state) {
  size_t count = 0;
  while (!state.section(group_key(count)).empty()) {
    ++count;
  }
  return count;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw UsageError("[load_optimizer_state] " + reason);
}

void check_names(
    size_t group,
    const StateDict& saved_group,
    const std::vector<std::string>& names) {
  std::set<std::string> saved;
  for (const auto& [key, name] : saved_group.section("parameters")) {
    saved.insert(std::get<std::string>(name));
  }
  // A tied weight appears once per name, so make the names unique.
  for (const auto& name : std::set(names.begin(), names.end())) {
    if (saved.erase(name) == 0) {
      refuse(str_cat(
          "Parameter '",
          name,
          "' of group ",
          group,
          " is not in the saved group. Was it saved with a different model?"));
    }
  }
  if (!saved.empty()) {
    refuse(str_cat(
        "The saved group ",
        group,
        " has a parameter '",
        *saved.begin(),
        "' that the optimizer does not have. Was it saved with a different "
        "model?"));
  }
}

/// The class name without its library. State of one class has the same names in
/// both libraries.
std::string_view class_name(std::string_view kind) {
  const auto colon = kind.rfind(':');
  return kind.substr(colon == kind.npos ? 0 : colon + 1);
}

/// Throws if an option would be lost. This would change the optimizer, unless
/// the option is disabled.
void check_none_is_lost(
    const SavableOptimizer& optimizer,
    size_t group,
    const StateDict& saved_group) {
  const StateDict known = optimizer.group_state(group);
  for (const auto& [option, value] : saved_group) {
    const auto* is_on = std::get_if<bool>(&value);
    if (!option.starts_with("parameters.") && !known.contains(option) &&
        (is_on == nullptr || *is_on)) {
      refuse(str_cat(
          "The saved group ",
          group,
          " has an option '",
          option,
          "' that ",
          optimizer.kind(),
          " does not have. Load it into an optimizer of the same type"));
    }
  }
}

void check_fits(
    const SavableOptimizer& optimizer,
    const std::vector<std::vector<std::string>>& names,
    const StateDict& state) {
  const auto& kind = state.get<std::string>("kind");
  if (class_name(kind) != class_name(optimizer.kind())) {
    refuse(str_cat(
        "The saved state belongs to ",
        kind,
        ", but the optimizer is ",
        optimizer.kind(),
        ". Load it into an optimizer of the same type"));
  }
  if (num_groups(state) != names.size()) {
    refuse(str_cat(
        "The saved state has ",
        num_groups(state),
        " parameter groups, but the optimizer has ",
        names.size(),
        ". Create the same groups before loading"));
  }
  for (size_t group = 0; group < names.size(); ++group) {
    const StateDict saved_group = state.section(group_key(group));
    check_names(group, saved_group, names[group]);
    check_none_is_lost(optimizer, group, saved_group);
  }
}

/// The keys after `state.name.` that belong to this parameter, and not to one
/// whose name starts with this one's.
StateDict state_of_parameter(const StateDict& state, const std::string& name) {
  StateDict own;
  for (const auto& [key, value] : state.section("state." + name)) {
    if (key.find('.') == std::string::npos) {
      std::visit([&](const auto& held) { own.set(key, held); }, value);
    }
  }
  return own;
}

} // namespace

NamedParameters named_parameters(const torch::nn::Module& model) {
  NamedParameters named;
  std::set<void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

NamedParameters named_parameters(const ParameterSet& set) {
  NamedParameters named;
  for (size_t i = 0; i < set.names.size(); ++i) {
    named.emplace_back(set.names[i], set.parameters[i]);
  }
  return named;
}

StateDict optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names) {
  // The adapters of torch's optimizers both read and write.
  const std::shared_ptr<const SavableOptimizer> source = savable_or_throw(
      const_cast<torch::optim::Optimizer&>(optimizer), "optimizer_state");
  const auto groups = names_of_groups(optimizer, names, "optimizer_state");
  StateDict state;
  state.set("kind", source->kind());
  for (size_t group = 0; group < groups.size(); ++group) {
    state.set(group_key(group), source->group_state(group));
    for (size_t i = 0; i < groups[group].size(); ++i) {
      const std::string& name = groups[group][i];
      state.set(str_cat(group_key(group), ".parameters.", i), name);
      state.set(
          "state." + name,
          source->parameter_state(optimizer.param_groups()[group].params()[i]));
    }
  }
  return state;
}

void check_optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const StateDict& state) {
  const std::shared_ptr<const SavableOptimizer> target = savable_or_throw(
      const_cast<torch::optim::Optimizer&>(optimizer), "load_optimizer_state");
  check_fits(
      *target,
      names_of_groups(optimizer, names, "load_optimizer_state"),
      state);
}

void load_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const StateDict& state) {
  const auto target = savable_or_throw(optimizer, "load_optimizer_state");
  const auto groups = names_of_groups(optimizer, names, "load_optimizer_state");
  check_fits(*target, groups, state);
  for (size_t group = 0; group < groups.size(); ++group) {
    target->load_group_state(group, state.section(group_key(group)));
    for (size_t i = 0; i < groups[group].size(); ++i) {
      const std::string& name = groups[group][i];
      const at::Tensor& parameter = optimizer.param_groups()[group].params()[i];
      const StateDict own = state_of_parameter(state, name);
      if (own.empty()) {
        optimizer.state().erase(parameter.unsafeGetTensorImpl());
        continue;
      }
      try {
        target->load_parameter_state(parameter, own);
      } catch (const UsageError& error) {
        throw UsageError(str_cat(error.what(), " (parameter '", name, "')"));
      }
    }
  }
}

} // namespace accelerate
