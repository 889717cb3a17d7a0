// SPDX-License-Identifier: Apache-2.0
#include "accelerate/accelerator.h"

#include <ATen/ATen.h>

#include <cmath>
#include <exception>
#include <iostream>
#include <unordered_set>

#include "accelerate/error.h"
#include "accelerate/sync_batch_norm.h"
#include "accelerator/accumulation.h"
#include "accelerator/assemble.h"
#include "accelerator/module_adapter.h"
#include "base/str.h"
#include "optim/prepared_optimizers.h"
#include "optim/torch_optimizer.h"
#include "parallel/gradient_norm.h"

namespace accelerate {
namespace {

// Scaled gradients in fp16 could not be divided again without loss.
void check_precision(const ParameterSet& model, Precision precision) {
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const auto& parameter = model.parameters[i];
    if (precision == Precision::kFp16 && parameter.requires_grad() &&
        parameter.scalar_type() == at::kHalf) {
      throw UsageError(str_cat(
          "[prepare] parameter '",
          model.names[i],
          "' is fp16 and would get fp16 gradients, expected fp32 with mixed "
          "precision fp16; call model->to(torch::kFloat) first"));
    }
  }
}

} // namespace

struct Accelerator::State {
  AcceleratorOptions options;
  Assembly assembly;
  std::shared_ptr<StepState> step_state = std::make_shared<StepState>();
  std::unique_ptr<Accumulation> accumulation;
  std::shared_ptr<GradScaler> scaler;
  bool trigger = false;
  /// What was prepared so far, so that a second `prepare` finds it again.
  std::vector<
      std::pair<std::weak_ptr<torch::nn::Module>, std::weak_ptr<ModelContext>>>
      models;
  std::shared_ptr<PreparedOptimizers> optimizers =
      std::make_shared<PreparedOptimizers>();
};

Accelerator::Accelerator(AcceleratorOptions options)
    : state_(std::make_unique<State>()) {
  state_->assembly = assemble(options, system_env);
  state_->accumulation = std::make_unique<Accumulation>(AccumulationOptions{
      state_->assembly.gradient_accumulation_steps,
      options.sync_with_dataloader,
      options.sync_each_batch});
  if (state_->assembly.precision == Precision::kFp16) {
    state_->scaler = std::make_shared<GradScaler>(
        options.scaler, [group = state_->assembly.group](at::Tensor& flag) {
          group.all_reduce(flag, ReduceOp::kMax);
        });
  }
  state_->options = std::move(options);
}

Accelerator::~Accelerator() = default;

c10::Device Accelerator::device() const {
  return state_->assembly.device;
}
int Accelerator::num_processes() const {
  return state_->assembly.topology.world_size;
}
int Accelerator::process_index() const {
  return state_->assembly.topology.rank;
}
int Accelerator::local_process_index() const {
  return state_->assembly.topology.local_rank;
}
bool Accelerator::is_main_process() const {
  return state_->assembly.topology.is_main();
}
bool Accelerator::is_local_main_process() const {
  return state_->assembly.topology.is_local_main();
}
bool Accelerator::is_last_process() const {
  return state_->assembly.topology.is_last();
}
const ProcessGroup& Accelerator::process_group() const {
  return state_->assembly.group;
}

DistributedType Accelerator::distributed_type() const {
  if (process_group().backend() == "solo") {
    return DistributedType::kNo;
  }
  return device().is_cuda() ? DistributedType::kMultiGpu
                            : DistributedType::kMultiCpu;
}

std::shared_ptr<ModelContext> Accelerator::prepare_module(
    const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) {
    throw UsageError("[prepare] got an empty module pointer");
  }
  auto& models = state_->models;
  std::erase_if(models, [](const auto& entry) {
    return entry.first.expired() || entry.second.expired();
  });
  for (const auto& [known, prepared] : models) {
    if (known.lock() == module) {
      auto context = prepared.lock();
      context->as_prepared.check_unchanged(parameters_of(*module));
      return context;
    }
  }
  if (state_->options.device_placement) {
    module->to(device());
  }
  detail::give_process_group(*module, process_group());
  auto context = std::make_shared<ModelContext>();
  context->model = parameters_of(*module);
  context->as_prepared = ParameterSnapshot(context->model);
  check_precision(context->model, mixed_precision());
  context->engine =
      make_engine(state_->assembly, context->model, state_->options);
  context->step_state = state_->step_state;
  context->device = device().type();
  context->precision = mixed_precision();
  context->outputs_to_fp32 = state_->options.outputs_to_fp32;
  models.emplace_back(module, context);
  return context;
}

std::shared_ptr<OptimizerStep> Accelerator::prepare_optimizer(
    torch::optim::Optimizer& optimizer) {
  auto& optimizers = state_->optimizers->entries;
  std::erase_if(
      optimizers, [](const auto& entry) { return entry.second.expired(); });
  if (auto known = state_->optimizers->find(optimizer)) {
    return known;
  }
  auto step = std::make_shared<OptimizerStep>(
      std::make_unique<TorchOptimizer>(optimizer),
      state_->step_state,
      state_->scaler);
  optimizers.emplace_back(&optimizer, step);
  return step;
}

Scheduler Accelerator::prepare_scheduler(Scheduler scheduler) {
  scheduler.prepare(
      state_->optimizers, state_->options.scheduler_stepping, num_processes());
  return scheduler;
}

std::optional<c10::Device> Accelerator::placement() const {
  if (!state_->options.device_placement) {
    return std::nullopt;
  }
  return device();
}

std::shared_ptr<StepState> Accelerator::step_state() const {
  return state_->step_state;
}

detail::LoaderPlace Accelerator::loader_place() const {
  return {
      .group = process_group(),
      .shard = {process_index(), num_processes()},
      .device = placement(),
      .configuration = state_->options.data_loader,
      .step_state = state_->step_state};
}

void Accelerator::backward(const at::Tensor& loss, BackwardOptions options) {
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw UsageError(str_cat(
        "[backward] got ",
        !loss.defined()     ? std::string("an undefined loss")
        : loss.numel() != 1 ? str_cat("a loss of shape ", loss.sizes())
                            : std::string("a loss without a graph"),
        ", expected one number computed from a prepared model with gradients "
        "enabled"));
  }
  if (!state_->models.empty() && !state_->step_state->has_forward()) {
    throw UsageError(
        "[backward] no prepared model was called since the last step; compute "
        "the loss with the model that prepare() gave back, or its gradients "
        "do not meet those of the other processes");
  }
  at::Tensor weighed = state_->accumulation->weigh(
      loss, options.weight, *state_->step_state, process_group());
  if (state_->scaler) {
    // Not after each optimizer's step: another may still hold gradients of the
    // old scale.
    if (state_->scaler->is_finished()) {
      state_->scaler->update();
    }
    weighed = state_->scaler->scale(weighed);
  }
  process_group().guard(
      "backward", [&] { weighed.backward({}, options.retain_graph); });
  state_->step_state->note_backward();
}

AccumulateGuard Accelerator::begin_micro_batch(
    std::vector<std::shared_ptr<ModelContext>> models) {
  AccumulateGuard guard;
  state_->accumulation->begin(*state_->step_state, std::move(models), guard);
  return guard;
}

bool Accelerator::sync_gradients() const {
  return state_->step_state->sync_gradients();
}

void Accelerator::trigger_sync(ParallelEngine& engine) {
  engine.sync_next_backward();
}

void Accelerator::unscale_gradients(PreparedOptimizer& optimizer) {
  if (sync_gradients()) {
    optimizer.shared_step()->unscale();
  }
}

void Accelerator::unscale_gradients() {
  if (!sync_gradients()) {
    return;
  }
  for (const auto& [raw, step] : state_->optimizers->entries) {
    if (const auto alive = step.lock()) {
      alive->unscale();
    }
  }
}

void Accelerator::unscale_owners_of(const std::vector<at::Tensor>& parameters) {
  if (!state_->scaler) {
    return;
  }
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : parameters) {
    wanted.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [raw, step] : state_->optimizers->entries) {
    const auto alive = step.lock();
    if (!alive) {
      continue;
    }
    const auto own = alive->optimizer().parameters();
    if (std::any_of(own.begin(), own.end(), [&](const auto& p) {
          return wanted.contains(p.unsafeGetTensorImpl());
        })) {
      alive->unscale();
    }
  }
}

at::Tensor Accelerator::clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type) {
  if (!sync_gradients()) {
    return at::full({}, std::nan(""));
  }
  unscale_owners_of(parameters);
  return clip_gradient_norm(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(
    const std::vector<at::Tensor>& parameters,
    double limit) {
  if (sync_gradients()) {
    unscale_owners_of(parameters);
    clip_gradient_values(parameters, limit);
  }
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(
      state_->optimizers->entries.begin(),
      state_->optimizers->entries.end(),
      [](const auto& entry) {
        const auto alive = entry.second.lock();
        return alive && alive->was_skipped();
      });
}

const std::shared_ptr<GradScaler>& Accelerator::scaler() const {
  return state_->scaler;
}

Precision Accelerator::mixed_precision() const {
  return state_->assembly.precision;
}

AutocastGuard Accelerator::autocast(bool enabled) const {
  return AutocastGuard(
      device().type(), enabled ? mixed_precision() : Precision::kNo);
}

void Accelerator::print_line(const std::string& line) const {
  if (is_local_main_process()) {
    std::cout << line + '\n' << std::flush;
  }
}

void Accelerator::wait_for_everyone() {
  process_group().barrier();
}

Accelerator::FirstGuard::FirstGuard(const ProcessGroup& group, bool is_first)
    : group_(group),
      is_first_(is_first),
      num_exceptions_(std::uncaught_exceptions()) {
  if (!is_first_) {
    group_.barrier();
  }
}

Accelerator::FirstGuard::~FirstGuard() noexcept(false) {
  // After an exception the others must not go on as if the work was done.
  if (is_first_ && std::uncaught_exceptions() == num_exceptions_) {
    group_.barrier();
  }
}

Accelerator::FirstGuard Accelerator::main_process_first() {
  return FirstGuard(process_group(), is_main_process());
}
Accelerator::FirstGuard Accelerator::local_main_process_first() {
  return FirstGuard(process_group(), is_local_main_process());
}

std::vector<int64_t> Accelerator::part_of(int64_t size, bool apply_padding)
    const {
  const int64_t parts = num_processes();
  const int64_t rank = process_index();
  const int64_t share = size / parts;
  const int64_t extra = size % parts;
  const int64_t first = rank * share + std::min(rank, extra);
  const int64_t count = share + (rank < extra ? 1 : 0);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(first + i);
  }
  const int64_t wanted = share + (extra > 0 ? 1 : 0);
  while (apply_padding && size > 0 &&
         static_cast<int64_t>(indices.size()) < wanted) {
    indices.push_back(indices.empty() ? size - 1 : indices.back());
  }
  return indices;
}

at::Tensor Accelerator::split_between_processes(
    const at::Tensor& inputs,
    bool apply_padding) const {
  const auto part = part_of(detail::length_of(inputs), apply_padding);
  return inputs.index_select(
      0, at::tensor(part, at::kLong).to(inputs.device()));
}

void Accelerator::set_trigger() {
  state_->trigger = true;
}

bool Accelerator::check_trigger() {
  auto flag = at::full({1}, state_->trigger ? 1 : 0, at::kLong);
  process_group().all_reduce(flag, ReduceOp::kMax);
  state_->trigger = false;
  return flag.item<int64_t>() > 0;
}

void Accelerator::end_training() {
  state_->assembly.group.shutdown();
}

std::vector<std::string> Accelerator::gather_object(
    const std::string& bytes) const {
  return process_group().all_gather_bytes(bytes);
}

void Accelerator::synchronize_rng_states() {
  accelerate::synchronize_rng_states(process_group(), device());
}

namespace detail {

int64_t length_of(const at::Tensor& values) {
  if (values.dim() == 0) {
    throw UsageError(
        "[split_between_processes] got a scalar, expected a tensor with a "
        "first dimension to split");
  }
  return values.size(0);
}

void check_same_length(
    const std::vector<std::pair<std::string, int64_t>>& lengths) {
  for (const auto& [name, length] : lengths) {
    if (length != lengths[0].second) {
      throw UsageError(str_cat(
          "[split_between_processes] '",
          name,
          "' has length ",
          length,
          ", '",
          lengths[0].first,
          "' has ",
          lengths[0].second,
          ", expected the same for all"));
    }
  }
}

} // namespace detail

} // namespace accelerate
