// SPDX-License-Identifier: Apache-2.0
#include "training/accelerator/module_adapter.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <unordered_map>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/state/deferred_tensors.h"

namespace accelerate {
namespace {

void add_once(
    const torch::OrderedDict<std::string, at::Tensor>& named,
    std::vector<std::string>& names,
    std::vector<at::Tensor>& tensors,
    std::map<std::string, std::string>& tied) {
  std::unordered_map<const c10::TensorImpl*, std::string> seen;
  for (const auto& item : named) {
    if (!item.value().defined()) {
      continue;
    }
    const auto [first, is_new] =
        seen.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (is_new) {
      names.push_back(item.key());
      tensors.push_back(item.value());
    } else {
      tied[item.key()] = first->second;
    }
  }
}

// The plan of a module includes those of its parts.
void add_tensor_plans(const torch::nn::Module& module, TensorPlan& plan) {
  if (const auto* planned = dynamic_cast<const HasTensorPlan*>(&module)) {
    plan = planned->tensor_plan();
    return;
  }
  for (const auto& child : module.named_children()) {
    TensorPlan own;
    add_tensor_plans(*child.value(), own);
    for (auto& entry : own) {
      entry.modules = str_cat(child.key(), '.', entry.modules);
      plan.push_back(std::move(entry));
    }
  }
}

} // namespace

ParameterSet parameters_of(const torch::nn::Module& module) {
  ParameterSet set;
  add_once(module.named_parameters(), set.names, set.parameters, set.tied);
  add_once(module.named_buffers(), set.buffer_names, set.buffers, set.tied);
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;
  for (size_t i = 0; i < set.parameters.size(); ++i) {
    index_of.emplace(set.parameters[i].unsafeGetTensorImpl(), i);
  }
  const auto add_to = [&](std::set<std::string>& names,
                          const at::Tensor& parameter) {
    const auto found = index_of.find(parameter.unsafeGetTensorImpl());
    if (found != index_of.end()) {
      names.insert(set.names[found->second]);
    }
  };
  for (const auto& inner : module.modules()) {
    if (const auto* linear = inner->as<torch::nn::LinearImpl>()) {
      add_to(set.in_linear, linear->weight);
      add_to(set.in_linear, linear->bias);
    }
    const auto* embedding = inner->as<torch::nn::EmbeddingImpl>();
    const auto* bag = inner->as<torch::nn::EmbeddingBagImpl>();
    if (embedding) {
      add_to(set.in_embedding, embedding->weight);
    }
    if (embedding && embedding->options.sparse()) {
      add_to(set.sparse_gradients, embedding->weight);
    }
    if (bag && bag->options.sparse()) {
      add_to(set.sparse_gradients, bag->weight);
    }
  }
  add_tensor_plans(module, set.tensor_plan);
  return set;
}

void move_module(
    torch::nn::Module& module,
    c10::Device device,
    bool with_parameters) {
  auto tensors = module.buffers();
  if (with_parameters) {
    const auto parameters = module.parameters();
    tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  }
  const bool has_deferred =
      std::any_of(tensors.begin(), tensors.end(), is_deferred);
  const auto there = at::empty({0}, at::TensorOptions(device));
  if (with_parameters && !has_deferred &&
      at::_has_compatible_shallow_copy_type(at::empty({0}), there)) {
    module.to(device);
    return;
  }
  for (const auto& tensor : tensors) {
    if (tensor.defined() && tensor.device() != device && !is_deferred(tensor)) {
      replace_memory(tensor, tensor.detach().to(device));
    }
  }
}

void check_values(const ParameterSet& model) {
  if (DeferredScope::is_open()) {
    throw UsageError(
        "[prepare] An EmptyWeights still exists. Destroy it before you call "
        "prepare(), which allocates the weights");
  }
  const auto check = [](const std::string& name, const at::Tensor& tensor) {
    if (tensor.is_meta() && !is_deferred(tensor)) {
      throw UsageError(str_cat(
          "[prepare] '",
          name,
          "' is on the meta device and has no values. Create the module "
          "without the meta device, or while an EmptyWeights exists"));
    }
  };
  for (size_t i = 0; i < model.names.size(); ++i) {
    check(model.names[i], model.parameters[i]);
  }
  for (size_t i = 0; i < model.buffer_names.size(); ++i) {
    check(model.buffer_names[i], model.buffers[i]);
  }
}

} // namespace accelerate
