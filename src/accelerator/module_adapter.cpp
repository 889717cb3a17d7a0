// SPDX-License-Identifier: Apache-2.0
#include "accelerator/module_adapter.h"

#include <unordered_set>

namespace accelerate {
namespace {

void add_once(
    const torch::OrderedDict<std::string, at::Tensor>& named,
    std::vector<std::string>& names,
    std::vector<at::Tensor>& tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : named) {
    if (item.value().defined() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      names.push_back(item.key());
      tensors.push_back(item.value());
    }
  }
}

} // namespace

ParameterSet parameters_of(const torch::nn::Module& module) {
  ParameterSet set;
  add_once(module.named_parameters(), set.names, set.parameters);
  add_once(module.named_buffers(), set.buffer_names, set.buffers);
  return set;
}

} // namespace accelerate
