// SPDX-License-Identifier: Apache-2.0
#include "accelerate/accelerator.h"

#include <ATen/ATen.h>

#include <exception>
#include <iostream>

#include "accelerate/error.h"
#include "accelerator/assemble.h"
#include "accelerator/module_adapter.h"
#include "base/str.h"
#include "state/step_state.h"

namespace accelerate {

struct Accelerator::State {
  AcceleratorOptions options;
  Assembly assembly;
  std::shared_ptr<StepState> step_state = std::make_shared<StepState>();
  bool trigger = false;
  /// Engines of the modules prepared so far, so that a second `prepare` of one
  /// finds its engine again.
  std::vector<std::pair<
      std::weak_ptr<torch::nn::Module>,
      std::shared_ptr<ParallelEngine>>>
      engines;
};

Accelerator::Accelerator(AcceleratorOptions options)
    : state_(std::make_unique<State>()) {
  state_->assembly = assemble(options, system_env);
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

std::shared_ptr<ParallelEngine> Accelerator::prepare_module(
    const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) {
    throw UsageError("[prepare] got an empty module pointer");
  }
  auto& engines = state_->engines;
  std::erase_if(
      engines, [](const auto& entry) { return entry.first.expired(); });
  for (const auto& [known, engine] : engines) {
    if (known.lock() == module) {
      return engine;
    }
  }
  if (state_->options.device_placement) {
    module->to(device());
  }
  std::shared_ptr<ParallelEngine> engine =
      make_engine(state_->assembly, parameters_of(*module), state_->options);
  engines.emplace_back(module, engine);
  return engine;
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

uint64_t Accelerator::agree_on_seed(uint64_t seed) const {
  auto shared = at::full({1}, static_cast<int64_t>(seed), at::kLong);
  process_group().broadcast(shared, 0);
  return static_cast<uint64_t>(shared.item<int64_t>());
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
  process_group().guard(
      "backward", [&] { loss.backward({}, options.retain_graph); });
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

void before_forward(ParallelEngine& engine) {
  engine.before_forward();
}
bool wants_outputs(const ParallelEngine& engine) {
  return engine.wants_outputs();
}
void after_forward(
    ParallelEngine& engine,
    std::span<at::Tensor* const> outputs) {
  engine.after_forward(outputs);
}

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

NoSyncGuard::NoSyncGuard(ParallelEngine& engine)
    : engine_(engine), was_syncing_(engine.sync()) {
  engine_.set_sync(false);
}
NoSyncGuard::~NoSyncGuard() {
  engine_.set_sync(was_syncing_);
}

} // namespace accelerate
