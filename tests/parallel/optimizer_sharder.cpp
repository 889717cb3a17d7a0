// SPDX-License-Identifier: Apache-2.0
#include "parallel/optimizer_sharder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "training/parallel/engine.h"

namespace accelerate {
namespace {

int64_t slice_size(int64_t size, int world_size) {
  return (size + world_size - 1) / world_size;
}

} // namespace

OptimizerSharder::OptimizerSharder(const EngineArguments& arguments)
    : group_(arguments.group), buffers_(arguments.model.buffers) {
  const auto& parameters = arguments.model.parameters;
  // One unit for all: the parameters move into flat memory of the layout.
  std::vector<size_t> all(parameters.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = i;
  }
  auto& layout = arguments.engine->layout();
  layout.set_units(parameters, {all});
  const auto& unit = layout.units()[0];
  const auto flat = layout.allocate(
      MemoryUse::kParameters, unit.num_elements, parameters[0].options());
  const auto views = layout.views(unit, flat, parameters);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    views[i].copy_(parameters[i]);
    at::Tensor parameter = parameters[i];
    parameter.set_data(views[i]);
    group_.broadcast(parameter.detach(), 0);
    const int64_t chunk = slice_size(parameter.numel(), group_.world_size());
    const int64_t begin = std::min(parameter.numel(), chunk * group_.rank());
    const int64_t size = std::min(chunk, parameter.numel() - begin);
    auto own = parameter.detach().flatten().narrow(0, begin, size);
    own.set_requires_grad(true);
    slices_.push_back({parameter, own, begin, chunk});
  }
}

const OptimizerSharder::Slice& OptimizerSharder::slice_of(
    const at::Tensor& tensor) const {
  return *std::find_if(slices_.begin(), slices_.end(), [&](const auto& slice) {
    return slice.parameter.is_same(tensor) || slice.own.is_same(tensor);
  });
}

void OptimizerSharder::before_forward() {
  ++calls["before_forward"];
  for (const auto& buffer : buffers_) {
    group_.broadcast(buffer, 0);
  }
}

void OptimizerSharder::after_forward(std::span<at::Tensor* const> outputs) {
  ++calls["after_forward"];
  calls["outputs"] += static_cast<int>(outputs.size());
}

void OptimizerSharder::set_buffers(
    const std::vector<std::string>& /*names*/,
    const std::vector<at::Tensor>& buffers) {
  ++calls["set_buffers"];
  buffers_ = buffers;
}

void OptimizerSharder::after_backward() {
  ++calls["after_backward"];
  if (!sync_ && !syncs_next_) {
    return;
  }
  syncs_next_ = false;
  is_reduced_ = true;
  for (auto& slice : slices_) {
    if (slice.parameter.grad().defined()) {
      auto sum = slice.parameter.grad() / group_.world_size();
      group_.all_reduce(sum, ReduceOp::kSum);
      slice.own.mutable_grad() =
          sum.flatten().narrow(0, slice.begin, slice.own.numel());
    }
  }
}

std::optional<at::Tensor> OptimizerSharder::gradient(
    const at::Tensor& parameter) const {
  const auto& slice = slice_of(parameter);
  return is_reduced_ ? slice.own.grad() : slice.parameter.grad();
}

void OptimizerSharder::zero_gradients(
    const std::vector<at::Tensor>& parameters,
    Zeroing how) {
  ++calls["zero_gradients"];
  is_reduced_ = false;
  for (const auto& each : parameters) {
    at::Tensor parameter = each;
    if (how == Zeroing::kDrop) {
      parameter.mutable_grad() = at::Tensor();
    } else if (parameter.grad().defined()) {
      parameter.mutable_grad().zero_();
    }
  }
}

LayerPlacement OptimizerSharder::place(const at::Tensor& tensor) const {
  const auto& slice = slice_of(tensor);
  return {slice.own, {{MeshDimension::kData, FlatShard{0, slice.share}}}};
}

void OptimizerSharder::after_step(bool did_step) {
  ++calls["after_step"];
  if (!did_step) {
    return;
  }
  ++num_steps_;
  const at::NoGradGuard no_grad;
  for (const auto& slice : slices_) {
    const int64_t size = slice.parameter.numel();
    auto padded =
        at::zeros({slice_size(size, group_.world_size())}, slice.own.options());
    padded.narrow(0, 0, slice.own.numel()).copy_(slice.own);
    const auto all = group_.all_gather(padded.detach()).flatten();
    slice.parameter.detach().flatten().copy_(all.narrow(0, 0, size));
  }
}

StateDict OptimizerSharder::state_dict() const {
  StateDict state;
  state.set("num_steps", num_steps_);
  return state;
}

void OptimizerSharder::load_state_dict(const StateDict& state) {
  num_steps_ = state.get<int64_t>("num_steps");
}

OwnEngine optimizer_sharder(OptimizerSharder** latest) {
  return {[latest](const EngineArguments& arguments) {
    auto engine = std::make_unique<OptimizerSharder>(arguments);
    if (latest != nullptr) {
      *latest = engine.get();
    }
    return engine;
  }};
}

} // namespace accelerate
