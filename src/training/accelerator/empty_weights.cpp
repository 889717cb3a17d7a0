// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/empty_weights.h"

#include <ATen/ATen.h>

#include <map>
#include <set>

#include "accelerate/error.h"
#include "accelerate/files/safetensors_index.h"
#include "core/base/str.h"
#include "training/accelerator/module_adapter.h"
#include "training/run/mismatch_list.h"
#include "training/state/deferred_tensors.h"
#include "training/state/file_tensors.h"

namespace accelerate {
namespace {

/// A tensor of a module, and where its values are stored.
struct PlacedWeight {
  at::Tensor target;
  const safetensors::File* file = nullptr;
  const safetensors::TensorView* view = nullptr;
};

std::map<std::string, at::Tensor> tensors_by_name(const ParameterSet& model) {
  std::map<std::string, at::Tensor> named;
  for (size_t i = 0; i < model.names.size(); ++i) {
    named.emplace(model.names[i], model.parameters[i]);
  }
  for (size_t i = 0; i < model.buffer_names.size(); ++i) {
    named.emplace(model.buffer_names[i], model.buffers[i]);
  }
  for (const auto& [name, listed] : model.tied) {
    named.emplace(name, named.at(listed));
  }
  return named;
}

} // namespace

struct EmptyWeights::Impl {
  DeferredScope scope;
};
EmptyWeights::EmptyWeights() : impl_(std::make_unique<Impl>()) {}
EmptyWeights::~EmptyWeights() = default;

void load_weights(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadWeightsOptions& options) {
  const safetensors::Checkpoint checkpoint(path);
  const auto model = parameters_of(module);
  const auto named = tensors_by_name(model);
  MismatchList mismatches;
  std::vector<PlacedWeight> weights;
  std::set<const c10::TensorImpl*> found;
  for (const auto& file : checkpoint.files()) {
    for (const auto& view : file.tensors()) {
      if (!checkpoint.contains(view.name) ||
          &checkpoint.tensor(view.name) != &view) {
        continue; // the index does not list it
      }
      const auto match = named.find(view.name);
      if (match == named.end()) {
        if (options.strict) {
          mismatches.add("unexpected tensors", view.name);
        }
        continue;
      }
      const auto& target = match->second;
      if (target.sizes() != at::IntArrayRef(view.shape)) {
        mismatches.add(
            "tensors of a different shape",
            view.name,
            str_cat(
                ' ',
                at::IntArrayRef(view.shape),
                " instead of ",
                target.sizes()));
      }
      weights.push_back({target, &file, &view});
      found.insert(target.unsafeGetTensorImpl());
    }
  }
  for (size_t i = 0; options.strict && i < model.names.size(); ++i) {
    if (!found.contains(model.parameters[i].unsafeGetTensorImpl())) {
      mismatches.add("missing tensors", model.names[i]);
    }
  }
  if (!mismatches.empty()) {
    throw UsageError(str_cat(
        "[load_weights] '",
        path.string(),
        "' does not fit the module: ",
        mismatches.text(),
        ". Was it saved from a different model?"));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [target, file, view] : weights) {
    // For a tensor without memory, this copy is recorded and refers to the
    // file.
    target.detach().copy_(tensor_in(*file, *view));
  }
}

} // namespace accelerate
