// SPDX-License-Identifier: Apache-2.0
// A model whose gradients meet those of the other ranks.
#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/tree.h"

namespace accelerate {

class ParallelEngine;

namespace detail {

ACCELERATE_API void before_forward(ParallelEngine& engine);
ACCELERATE_API bool wants_outputs(const ParallelEngine& engine);
ACCELERATE_API void after_forward(
    ParallelEngine& engine,
    std::span<at::Tensor* const> outputs);

} // namespace detail

/// What `Accelerator::prepare` makes of a `torch::nn::Module`. Call it as the
/// module's `forward`, with any arguments and any result; reach everything else
/// of the module by `->`. Copies share module and engine.
template <std::derived_from<torch::nn::Module> Module>
class PreparedModel {
 public:
  PreparedModel(
      std::shared_ptr<Module> module,
      std::shared_ptr<ParallelEngine> engine)
      : module_(std::move(module)), engine_(std::move(engine)) {}

  /// Runs `forward` between the seams of the engine. The backward of a training
  /// forward is where gradients are averaged: each such forward must be
  /// followed by its backward on all ranks.
  template <class... Args>
  auto operator()(Args&&... args) {
    detail::before_forward(*engine_);
    auto output = module_->forward(std::forward<Args>(args)...);
    std::vector<at::Tensor*> tensors;
    if (detail::wants_outputs(*engine_)) {
      tree::for_each(output, [&](at::Tensor& t) { tensors.push_back(&t); });
    }
    detail::after_forward(*engine_, tensors);
    return output;
  }

  Module* operator->() { return module_.get(); }
  Module& operator*() { return *module_; }
  const std::shared_ptr<Module>& module() const { return module_; }
  ParallelEngine& engine() { return *engine_; }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<ParallelEngine> engine_;
};

/// While it lives, backward of the model adds up local gradients and sends
/// nothing. Guards of one model may be nested.
class ACCELERATE_API NoSyncGuard {
 public:
  explicit NoSyncGuard(ParallelEngine& engine);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  ParallelEngine& engine_;
  bool was_syncing_;
};

} // namespace accelerate
