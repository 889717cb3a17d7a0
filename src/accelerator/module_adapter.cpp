// SPDX-License-Identifier: Apache-2.0
#include "accelerator/module_adapter.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>

#include <unordered_map>

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

} // namespace

ParameterSet parameters_of(const torch::nn::Module& module) {
  ParameterSet set;
  add_once(module.named_parameters(), set.names, set.parameters, set.tied);
  add_once(module.named_buffers(), set.buffer_names, set.buffers, set.tied);
  for (const auto& part : module.modules()) {
    const auto* embedding = part->as<torch::nn::EmbeddingImpl>();
    const auto* bag = part->as<torch::nn::EmbeddingBagImpl>();
    const bool is_sparse = (embedding && embedding->options.sparse()) ||
                           (bag && bag->options.sparse());
    for (size_t i = 0; is_sparse && i < set.names.size(); ++i) {
      if (set.parameters[i].is_same(
              embedding ? embedding->weight : bag->weight)) {
        set.sparse_gradients.insert(set.names[i]);
      }
    }
  }
  return set;
}

void move_module(torch::nn::Module& module, c10::Device device) {
  const auto there = at::empty({0}, at::TensorOptions(device));
  if (at::_has_compatible_shallow_copy_type(at::empty({0}), there)) {
    module.to(device);
    return;
  }
  auto tensors = module.parameters();
  const auto buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.device() == device) {
      continue;
    }
    const auto moved = tensor.detach().to(device);
    if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
      // A graph that was recorded before would add up on the old device.
      meta->grad_accumulator_.reset();
    }
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  }
}

} // namespace accelerate
