// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/shared_tensors.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

std::string describe_model(const ParameterSet& model) {
  std::string text;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const auto& parameter = model.parameters[i];
    text += str_cat(
        model.names[i],
        ' ',
        c10::toString(parameter.scalar_type()),
        parameter.sizes(),
        parameter.requires_grad() ? "" : " frozen",
        '\n');
  }
  return text + str_cat(model.buffers.size(), " buffers");
}

bool is_trained(const ParameterSet& model) {
  return std::any_of(
      model.parameters.begin(), model.parameters.end(), [](const auto& p) {
        return p.requires_grad();
      });
}

std::string trained_names(const ParameterSet& model) {
  std::string text;
  for (size_t i = 0; i < model.names.size(); ++i) {
    if (model.parameters[i].requires_grad()) {
      text += model.names[i] + '\n';
    }
  }
  return text;
}

SharedBuffers::SharedBuffers(const ParameterSet& model) {
  set(model.buffer_names, model.buffers);
  shared_ = shapes_;
  are_other_ = false;
}

void SharedBuffers::set(
    const std::vector<std::string>& names,
    const std::vector<at::Tensor>& tensors) {
  tensors_ = tensors;
  shapes_.clear();
  for (size_t i = 0; i < names.size(); ++i) {
    shapes_[names[i]] =
        str_cat(c10::toString(tensors[i].scalar_type()), tensors[i].sizes());
  }
  are_other_ = shapes_ != shared_;
}

std::string SharedBuffers::name(const std::string& operation) const {
  std::string changes;
  if (are_other_) {
    for (const auto& [name, shape] : shapes_) {
      const auto before = shared_.find(name);
      if (before == shared_.end() || before->second != shape) {
        changes += str_cat(" whose buffer '", name, "' is now ", shape);
      }
    }
    for (const auto& [name, shape] : shared_) {
      if (!shapes_.contains(name)) {
        changes += str_cat(" whose buffer '", name, "' is gone");
      }
    }
  }
  return operation + changes;
}

void SharedBuffers::share(const ProcessGroup& group, int root) {
  broadcast_tensors(group, "broadcast of buffers", tensors_, root);
  shared_ = shapes_;
  are_other_ = false;
}

void broadcast_tensors(
    const ProcessGroup& group,
    const char* what,
    const std::vector<at::Tensor>& tensors,
    int root) {
  constexpr size_t kBroadcastBytes = 250 * 1024 * 1024;
  const auto carrier = to_c10d(group);
  // A forward after the end of training does not communicate.
  if (tensors.empty() || !carrier) {
    return;
  }
  group.guard(what, [&] {
    c10d::broadcast_coalesced(carrier, tensors, kBroadcastBytes, root);
  });
}

} // namespace accelerate
