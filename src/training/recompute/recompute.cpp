// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/recompute.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <algorithm>
#include <set>

#include "accelerate/error.h"
#include "training/device/accelerator_kinds.h"
#include "training/random/generators.h"

namespace accelerate::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// The generator that CPU operators use inside a segment. It replaces torch's
/// default one, which all threads share. Undefined outside of segments.
at::Generator& generator_of_segment() {
  thread_local at::Generator generator;
  return generator;
}

at::Generator cpu_generator() {
  const auto& own = generator_of_segment();
  return own.defined() ? own : default_generator(c10::kCPU);
}

/// Torch reserves this key for other libraries' modes.
constexpr auto kSegmentKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

bool is_generator(const c10::Argument& argument) {
  return *argument.type() ==
         *c10::OptionalType::create(c10::GeneratorType::get());
}

/// Passes the segment's generator to an operator that was called without one.
void draw_in_segment(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values =
      stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  const auto tensor = std::find_if(
      values, stack->end(), [](const auto& value) { return value.isTensor(); });
  // Without a tensor, the operator calls another one that has a tensor.
  const bool is_on_cpu = tensor != stack->end() &&
                         tensor->toTensor().defined() &&
                         tensor->toTensor().is_cpu();
  for (size_t i = 0; is_on_cpu && i < arguments.size(); ++i) {
    auto& value = values[static_cast<std::ptrdiff_t>(i)];
    if (value.isNone() && is_generator(arguments[i])) {
      value = generator_of_segment();
    }
  }
  const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, kSegmentKey);
  op.redispatchBoxed(keys & after, stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.getNamespace() != "aten") {
      continue;
    }
    const auto& arguments = op->schema().arguments();
    if (std::any_of(arguments.begin(), arguments.end(), is_generator)) {
      library.impl(
          c10::toString(name).c_str(),
          torch::CppFunction::makeFromBoxedFunction<&draw_in_segment>());
    }
  }
}

/// Lets this thread draw CPU random numbers that no other thread shares.
class SegmentGenerator {
 public:
  explicit SegmentGenerator(const at::Tensor& state)
      : before_(generator_of_segment()), includes_(kSegmentKey) {
    auto own = at::detail::createCPUGenerator();
    set_generator_state(own, state);
    generator_of_segment() = std::move(own);
  }
  ~SegmentGenerator() { generator_of_segment() = before_; }
  SegmentGenerator(const SegmentGenerator&) = delete;
  SegmentGenerator& operator=(const SegmentGenerator&) = delete;

  /// Random numbers drawn after the segment continue its sequence.
  void finish() const {
    const auto state = generator_state(generator_of_segment());
    set_generator_state(
        before_.defined() ? before_ : default_generator(c10::kCPU), state);
  }

 private:
  at::Generator before_;
  c10::impl::IncludeDispatchKeyGuard includes_;
};

/// The states of the generators of the CPU and of the devices of some tensors.
class RandomState {
 public:
  explicit RandomState(const std::vector<at::Tensor>& tensors)
      : cpu_(generator_state(cpu_generator())) {
    std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> devices;
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
  const at::Tensor& cpu() const { return cpu_; }
  void restore_devices() const {
    for (const auto& [generator, state] : states_) {
      set_generator_state(generator, state);
    }
  }

 private:
  at::Tensor cpu_;
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// The autocast state of each kind of device, without its cache of weights. A
/// copy that was cast without recording a graph would cut the gradients of a
/// later use, and a copy cast in forward no longer exists in backward.
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

/// Restores the previous state, even after an exception.
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
      : before_(tensors), cpu_(wanted.cpu()) {
    wanted.restore_devices();
  }
  ~SegmentRandom() { before_.restore_devices(); }
  SegmentRandom(const SegmentRandom&) = delete;
  SegmentRandom& operator=(const SegmentRandom&) = delete;

 private:
  RandomState before_;
  SegmentGenerator cpu_;
};

/// The state that the second run needs besides the inputs.
struct Recipe : torch::CustomClassHolder {
  Recipe(Segment segment, const std::vector<at::Tensor>& inputs)
      : segment(std::move(segment)), random(inputs) {}
  Segment segment;
  RandomState random;
  AutocastState autocast;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // `anchor` requires a gradient, so that backward is called even if only the
  // parameters inside the segment need one.
  static tensor_list forward(
      AutogradContext* context,
      c10::intrusive_ptr<Recipe> recipe,
      const at::Tensor& /*anchor*/,
      at::TensorList inputs) {
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    context->save_for_backward(inputs.vec());
    const SegmentAutocast autocast(recipe->autocast);
    const SegmentGenerator random(recipe->random.cpu());
    auto outputs = recipe->segment(inputs.vec());
    random.finish();
    return outputs;
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw UsageError(
          "[recompute] torch::autograd::grad and backward() with a list of "
          "inputs do not work with a recomputed segment. Call backward() "
          "without inputs");
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
  // Autograd only accepts defined tensors.
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
