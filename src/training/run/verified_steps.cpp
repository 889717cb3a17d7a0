// SPDX-License-Identifier: Apache-2.0
#include "training/run/verified_steps.h"

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <unordered_set>

#include "accelerate/safetensors.h"
#include "core/base/str.h"
#include "training/device/device.h"
#include "training/state/file_tensors.h"
#include "training/verification/sketching.h"

namespace accelerate {
namespace {

std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> versions;
  for (const auto& tensor : tensors) {
    versions.push_back(tensor.defined() ? tensor._version() : 0);
  }
  return versions;
}

// The tensors whose gradients a backward pass from `loss` computes.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) {
      open.push_back(node);
    }
  };
  visit(loss.grad_fn().get());
  while (!open.empty()) {
    auto* node = open.back();
    open.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      leaves.push_back(leaf->variable);
    }
    for (const auto& edge : node->next_edges()) {
      visit(edge.function.get());
    }
  }
  return leaves;
}

template <class Value>
bool contains(const std::vector<Value>& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

} // namespace

VerifiedSteps::VerifiedSteps(
    const RunContext& context,
    const RunCheckpoints& checkpoints,
    StepRecorder& recorder)
    : context_(context), checkpoints_(checkpoints), recorder_(recorder) {
  recorder_.begin(
      context_.topology().rank,
      context_.topology().world_size,
      context_.mesh().size(MeshDimension::kData));
  recorder_.watch_generator(context_.device());
}

std::string VerifiedSteps::name_of(
    const ModelContext& model,
    const std::string& name) const {
  const auto of_model = context_.state->name_of(model);
  return of_model == "model" ? name : str_cat(of_model, '.', name);
}

verify::TensorRecord VerifiedSteps::record_of(
    const ModelContext& model,
    size_t index,
    const at::Tensor& values) const {
  const auto& parameter = model.model.parameters[index];
  const auto& engine = *model.engine;
  const auto& pieces = engine.pieces(parameter);
  verify::TensorRecord record{
      .name = name_of(model, model.model.names[index]),
      .num_elements = parameter.numel(),
      .num_dimensions = parameter.dim(),
      .is_divided = pieces.has_value(),
      .is_trained = parameter.requires_grad(),
      .epsilon = epsilon_of(values.scalar_type())};
  if (pieces) {
    const auto sizes = engine.whole_sizes(parameter);
    record.num_elements = c10::multiply_integers(sizes);
    record.num_dimensions = static_cast<int64_t>(sizes.size());
    record.sketch = sketch_of(values, sizes, *pieces);
  } else {
    record.sketch = sketch_of(values);
  }
  return record;
}

std::vector<verify::TensorRecord> VerifiedSteps::parameters_of(
    const ModelContext& model) const {
  std::vector<verify::TensorRecord> records;
  for (size_t i = 0; i < model.model.parameters.size(); ++i) {
    const auto& parameter = model.model.parameters[i];
    records.push_back(record_of(model, i, model.engine->trained(parameter)));
  }
  return records;
}

std::vector<verify::TensorRecord> VerifiedSteps::all_parameters() const {
  std::vector<verify::TensorRecord> records;
  for (const auto& model : context_.living_models()) {
    const auto own = parameters_of(*model);
    records.insert(records.end(), own.begin(), own.end());
  }
  return records;
}

void VerifiedSteps::save_initial(const ModelContext& model) const {
  const auto folder =
      recorder_.shared_file("initial_" + context_.state->name_of(model));
  checkpoints_.save_model(model, folder, {});
}

void VerifiedSteps::load_initial(ModelContext& model) const {
  const at::NoGradGuard no_grad;
  const safetensors::File file(
      recorder_.shared_file("initial_" + context_.state->name_of(model)) /
      "model.safetensors");
  const auto& tensors = model.model;
  for (size_t i = 0; i < tensors.names.size(); ++i) {
    if (file.contains(tensors.names[i])) {
      model.engine->load(
          tensors.parameters[i],
          tensor_in(file, file.tensor(tensors.names[i]))
              .to(tensors.parameters[i].device()));
    }
  }
  model.engine->after_load();
  for (size_t i = 0; i < tensors.buffer_names.size(); ++i) {
    auto buffer = tensors.buffers[i];
    if (file.contains(tensors.buffer_names[i]) && buffer.defined()) {
      const auto value = tensor_in(file, file.tensor(tensors.buffer_names[i]));
      if (value.sizes() == buffer.sizes()) {
        buffer.copy_(value);
      }
    }
  }
}

void VerifiedSteps::begin_forward(ModelContext& model) {
  if (contains<const ModelContext*>(begun_, &model)) {
    return;
  }
  begun_.push_back(&model);
  if (recorder_.loads_weights()) {
    load_initial(model);
  } else {
    save_initial(model);
  }
  recorder_.add_initial(parameters_of(model));
}

void VerifiedSteps::before_forward(const ModelContext& model) {
  buffer_versions_[&model] = versions_of(model.model.buffers);
  if (contains(seen_, &model)) {
    return;
  }
  seen_.push_back(&model);
  const auto& tensors = model.model;
  for (size_t i = 0; i < tensors.buffers.size(); ++i) {
    const auto& buffer = tensors.buffers[i];
    if (buffer.defined() && !buffer.is_meta()) {
      next_.buffers.push_back(
          {.name = name_of(model, tensors.buffer_names[i]),
           .num_elements = buffer.numel(),
           .epsilon = epsilon_of(buffer.scalar_type()),
           .sketch = sketch_of(buffer)});
    }
  }
}

void VerifiedSteps::after_forward(const ModelContext& model) {
  const auto& before = buffer_versions_[&model];
  const auto after = versions_of(model.model.buffers);
  for (size_t i = 0; i < after.size(); ++i) {
    if (i >= before.size() || before[i] != after[i]) {
      recorder_.note_changed_buffer(
          name_of(model, model.model.buffer_names[i]));
    }
  }
}

void VerifiedSteps::check_leaves(const at::Tensor& loss) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& model : context_.living_models()) {
    for (const auto& [tensor, index] : model->index_of) {
      known.insert(tensor);
    }
  }
  // Optimizers may write to the data of a tensor, which leaves its version.
  for (const auto& [impl, entry] : foreign_) {
    const auto& [tensor, before] = entry;
    if (!has_foreign_ && !known.contains(impl) && sketch_of(tensor) != before) {
      has_foreign_ = true;
      recorder_.note_problem(str_cat(
          "A tensor of shape ",
          tensor.sizes(),
          " is trained, but does not belong to any prepared model, so its "
          "gradient is not synchronised. Add tensors such as LoRA adapters to "
          "the model before prepare()"));
    }
  }
  for (const auto& leaf : leaves_of(loss)) {
    if (!known.contains(leaf.unsafeGetTensorImpl())) {
      foreign_.try_emplace(leaf.unsafeGetTensorImpl(), leaf, sketch_of(leaf));
    }
  }
}

void VerifiedSteps::check_weights(bool is_python) {
  auto now = all_parameters();
  if (!latest_.empty() && latest_ != now) {
    if (!is_python) {
      recorder_.note_problem(
          "The weights changed between two backward passes, but no prepared "
          "optimizer made a step. Pass the optimizer to prepare()");
    }
    next_.optimizer = -1;
    next_.parameters = now;
    next_.peak_memory = peak_memory();
    recorder_.add_update(std::exchange(next_, {}));
    seen_.clear();
    if (recorder_.num_updates() >= recorder_.num_steps()) {
      end();
    }
  }
  latest_ = std::move(now);
}

void VerifiedSteps::before_backward(
    const at::Tensor& loss,
    const std::optional<LossWeight>& weight,
    bool is_python) {
  check_weights(is_python);
  check_leaves(loss);
  recorder_.note_backward(
      loss.item<double>(), weight ? weight->count().item<double>() : 1.0);
}

void VerifiedSteps::before_update(OptimizerStep& optimizer) {
  next_.gradients.clear();
  const auto models = context_.living_models();
  for (const auto& trained : optimizer.optimizer().parameters()) {
    for (const auto& model : models) {
      const auto found = model->index_of.find(trained.unsafeGetTensorImpl());
      if (found == model->index_of.end()) {
        continue;
      }
      const auto gradient = model->engine->gradient(trained);
      if (gradient.defined()) {
        next_.gradients.push_back(record_of(*model, found->second, gradient));
      }
      break;
    }
  }
  auto [last, is_first] = num_backwards_.try_emplace(&optimizer, 0);
  if (last->second == context_.progress->num_backwards &&
      !next_.gradients.empty()) {
    recorder_.note_problem(
        "The optimizer uses gradients that accelerator.backward() did not "
        "compute, so they are neither averaged over micro-batches nor "
        "synchronised as needed. Call accelerator.backward(loss) instead of "
        "loss.backward()");
  }
  last->second = context_.progress->num_backwards;
  // Users scale the learning rate with the number of processes on purpose.
  next_.learning_rates = optimizer.optimizer().current_rates();
  own_rates_ = next_.learning_rates;
  const auto* expected = recorder_.expected_update();
  if (expected != nullptr && expected->learning_rates != own_rates_ &&
      expected->learning_rates.size() == own_rates_.size()) {
    optimizer.optimizer().set_current_rates(expected->learning_rates);
  }
}

void VerifiedSteps::after_update(OptimizerStep& optimizer) {
  if (optimizer.optimizer().current_rates() != own_rates_) {
    optimizer.optimizer().set_current_rates(own_rates_);
  }
  const auto optimizers = context_.living_optimizers();
  for (size_t i = 0; i < optimizers.size(); ++i) {
    if (optimizers[i].get() == &optimizer) {
      next_.optimizer = static_cast<int>(i);
    }
  }
  latest_ = all_parameters();
  next_.parameters = latest_;
  next_.peak_memory = peak_memory();
  recorder_.add_update(std::exchange(next_, {}));
  seen_.clear();
  const auto most =
      recorder_.num_steps() * static_cast<int64_t>(optimizers.size());
  if (recorder_.num_updates() >= most) {
    end();
  }
}

int64_t VerifiedSteps::peak_memory() const {
  const auto device = context_.device();
  if (!device.is_cpu()) {
    return device_bytes(device).peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void VerifiedSteps::end() const {
  // Other ranks must not lose this one in their last step.
  context_.group().barrier();
  std::cout.flush();
  std::fflush(nullptr);
  // Destructors and handlers could save files, or wait for other ranks.
  _exit(0);
}

} // namespace accelerate
