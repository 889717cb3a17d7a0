// SPDX-License-Identifier: Apache-2.0
// A prepared model, whose gradients are synchronised over ranks.
#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/detail/forward_scope.h"
#include "accelerate/state/tree.h"

namespace accelerate {

/// What `Accelerator::prepare` returns for a `torch::nn::Module`. Call it like
/// the module's `forward`, which may have any arguments and result. Use `->`
/// for all other members of the module. Copies share the module and the engine.
template <std::derived_from<torch::nn::Module> Module>
class PreparedModel {
 public:
  PreparedModel(
      std::shared_ptr<Module> module,
      std::shared_ptr<ModelContext> context)
      : module_(std::move(module)), context_(std::move(context)) {}

  /// Runs `forward` with the engine's callbacks and in the precision of the
  /// run. In training, all ranks must run a backward pass after each forward
  /// pass, because the backward pass averages gradients.
  template <class... Args>
  auto operator()(Args&&... args) const {
    detail::ForwardScope scope(*context_);
    auto output = module_->forward(scope.input(std::forward<Args>(args))...);
    std::vector<at::Tensor*> tensors;
    if (scope.wants_outputs()) {
      tree::for_each(output, [&](at::Tensor& t) { tensors.push_back(&t); });
    }
    scope.finish(tensors);
    return output;
  }

  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  const std::shared_ptr<Module>& module() const { return module_; }
  /// These functions call the functions of the same name in the module.
  std::vector<at::Tensor> parameters() const { return module_->parameters(); }
  void train(bool on = true) const { module_->train(on); }
  void eval() const { module_->eval(); }
  void zero_grad(bool set_to_none = true) const {
    module_->zero_grad(set_to_none);
  }
  ParallelEngine& engine() const { return detail::engine_of(*context_); }
  const std::shared_ptr<ModelContext>& context() const { return context_; }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelContext> context_;
};

/// `torch::save(net, path)` and `torch::load(net, path)` save and load the
/// module. Load on all ranks.
template <class Module>
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const PreparedModel<Module>& model) {
  model->save(archive);
  return archive;
}
template <class Module>
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive,
    PreparedModel<Module>& model) {
  model->load(archive);
  return archive;
}

} // namespace accelerate
