// SPDX-License-Identifier: Apache-2.0
// A model as the engines see it: named tensors, whatever language made them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace accelerate {

/// Parallel lists of names and tensors. A tensor that a model uses under two
/// names is listed once, under the first. Tensors are shared with the model.
struct ParameterSet {
  std::vector<std::string> names = {};
  std::vector<at::Tensor> parameters = {};
  std::vector<std::string> buffer_names = {};
  std::vector<at::Tensor> buffers = {};
  /// Names of parameters whose gradients are sparse tensors.
  std::set<std::string> sparse_gradients = {};
  /// Other names of tensors, and the names under which they are listed.
  std::map<std::string, std::string> tied = {};
  /// Names of buffers that are no part of a saved model.
  std::set<std::string> transient_buffers = {};
  /// Names of modules whose parameters are read together, as an adapter knows
  /// that sees modules: what a sharded model's units are where none are given.
  std::vector<std::string> units = {};
  /// Names of parameters that stay whole on every rank where the rest is
  /// sharded, as an adapter knows that was told modules.
  std::vector<std::string> whole = {};
};

} // namespace accelerate
