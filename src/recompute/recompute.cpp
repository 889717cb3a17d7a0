// SPDX-License-Identifier: Apache-2.0
#include "accelerate/recompute.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <set>

#include "accelerate/error.h"
#include "device/accelerator_kinds.h"
#include "random/generators.h"

namespace accelerate::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// The generators of the CPU and of the devices of some tensors.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Tensor>& tensors) {
    std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> devices = {
        {c10::kCPU, c10::DeviceIndex{-1}}};
    for (const auto& tensor : tensors) {
      if (kind_of(tensor.device()) != nullptr) {
        devices.emplace(tensor.device().type(), tensor.get_device());
      }
    }
    for (const auto& [type, index] : devices) {
      auto generator = default_generator(c10::Device(type, index));
      states_.emplace_back(generator, generator_state(generator));
    }
  }
  void restore() const {
    for (const auto& [generator, state] : states_) {
      set_generator_state(generator, state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// What autocast does on each kind of device, without its cache of weights: a
/// copy made while no graph is recorded would cut the gradients of a later use,
/// and one made in forward is gone in backward.
class AutocastState {
 public:
  AutocastState() : uses_cache_(at::autocast::is_autocast_cache_enabled()) {
    std::vector<c10::DeviceType> kinds = {c10::kCPU};
    if (const auto* kind = accelerator_in_use()) {
      kinds.push_back(kind->type);
    }
    for (const auto device : kinds) {
      devices_.push_back(
          {device,
           at::autocast::is_autocast_enabled(device),
           at::autocast::get_autocast_dtype(device)});
    }
  }
  void restore(bool with_cache) const {
    for (const auto& each : devices_) {
      at::autocast::set_autocast_enabled(each.device, each.enabled);
      at::autocast::set_autocast_dtype(each.device, each.dtype);
    }
    at::autocast::set_autocast_cache_enabled(with_cache && uses_cache_);
  }

 private:
  struct OfDevice {
    c10::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<OfDevice> devices_;
  bool uses_cache_;
};

/// Puts things back as they were, also after an exception.
class SegmentAutocast {
 public:
  explicit SegmentAutocast(const AutocastState& wanted) {
    wanted.restore(/*with_cache=*/false);
  }
  ~SegmentAutocast() { before_.restore(/*with_cache=*/true); }
  SegmentAutocast(const SegmentAutocast&) = delete;
  SegmentAutocast& operator=(const SegmentAutocast&) = delete;

 private:
  AutocastState before_;
};
class SegmentRandom {
 public:
  SegmentRandom(
      const RandomState& wanted,
      const std::vector<at::Tensor>& tensors)
      : before_(tensors) {
    wanted.restore();
  }
  ~SegmentRandom() { before_.restore(); }
  SegmentRandom(const SegmentRandom&) = delete;
  SegmentRandom& operator=(const SegmentRandom&) = delete;

 private:
  RandomState before_;
};

/// All that the second run needs besides the inputs.
struct Recipe : torch::CustomClassHolder {
  Recipe(Segment segment, const std::vector<at::Tensor>& inputs)
      : segment(std::move(segment)), random(inputs) {}
  Segment segment;
  RandomState random;
  AutocastState autocast;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `anchor` requires a gradient, so that backward comes by even where the
  // parameters inside are all that need one.
  static tensor_list forward(
      AutogradContext* context,
      c10::intrusive_ptr<Recipe> recipe,
      const at::Tensor& /*anchor*/,
      at::TensorList inputs) {
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    context->save_for_backward(inputs.vec());
    const SegmentAutocast autocast(recipe->autocast);
    return recipe->segment(inputs.vec());
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw UsageError(
          "[recompute] got torch::autograd::grad or a backward with a list "
          "of inputs, expected backward(): gradients of a recomputed "
          "segment come by a backward of their own");
    }
    const auto capsule = context->saved_data["recipe"].toCapsule();
    auto& recipe = static_cast<Recipe&>(*capsule);
    std::vector<at::Tensor> inputs;
    for (const auto& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    run_backward(again(recipe, inputs), gradients);
    tensor_list result(2);
    for (const auto& input : inputs) {
      result.push_back(input.grad());
    }
    return result;
  }

 private:
  static std::vector<at::Tensor> again(
      Recipe& recipe,
      const std::vector<at::Tensor>& inputs) {
    const SegmentRandom random(recipe.random, inputs);
    const SegmentAutocast autocast(recipe.autocast);
    const at::AutoGradMode record(true);
    return recipe.segment(inputs);
  }

  static void run_backward(
      const std::vector<at::Tensor>& outputs,
      const tensor_list& gradients) {
    tensor_list roots;
    tensor_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    if (!roots.empty()) {
      torch::autograd::backward(roots, root_gradients);
    }
  }
};

} // namespace

std::vector<at::Tensor> recompute(
    Segment segment,
    const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return segment(inputs);
  }
  // Autograd takes only tensors that are there.
  std::vector<at::Tensor> defined;
  std::vector<bool> is_defined;
  for (const auto& input : inputs) {
    is_defined.push_back(input.defined());
    if (input.defined()) {
      defined.push_back(input);
    }
  }
  Segment of_defined = [segment = std::move(segment),
                        is_defined = std::move(is_defined)](
                           const std::vector<at::Tensor>& values) {
    std::vector<at::Tensor> all;
    auto next = values.begin();
    for (const bool is_there : is_defined) {
      all.push_back(is_there ? *next++ : at::Tensor());
    }
    return segment(all);
  };
  auto anchor = at::empty({0});
  anchor.requires_grad_(true);
  return CheckpointFunction::apply(
      c10::make_intrusive<Recipe>(std::move(of_defined), defined),
      anchor,
      at::TensorList(defined));
}

} // namespace accelerate::detail
