// SPDX-License-Identifier: Apache-2.0
// A model as engines see it: named tensors, independent of the language.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "accelerate/distributed/tensor_plan.h"

namespace accelerate {

/// Parallel lists of names and tensors. A tensor with two names is listed once,
/// under its first name. The tensors are shared with the model.
struct ParameterSet {
  std::vector<std::string> names = {};
  std::vector<at::Tensor> parameters = {};
  std::vector<std::string> buffer_names = {};
  std::vector<at::Tensor> buffers = {};
  /// Names of parameters whose gradients are sparse tensors.
  std::set<std::string> sparse_gradients = {};
  /// Maps other names of tensors to the names they are listed under.
  std::map<std::string, std::string> tied = {};
  /// Names of buffers that are not part of a saved model.
  std::set<std::string> transient_buffers = {};
  /// Names of modules that are the default shard units, if the adapter knows
  /// modules.
  std::vector<std::string> units = {};
  /// Names of parameters that stay whole on every rank in a sharded model, if
  /// the adapter was given modules.
  std::vector<std::string> whole = {};
  /// Names of parameters of `torch::nn::Linear` and of tables of
  /// `torch::nn::Embedding`, if the adapter knows modules.
  std::set<std::string> in_linear = {};
  std::set<std::string> in_embedding = {};
  /// The plan that the model ships with, if it does.
  TensorPlan tensor_plan = {};
};

} // namespace accelerate
