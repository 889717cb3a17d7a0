// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/local_sgd.h"

#include <ATen/ATen.h>

#include <exception>
#include <map>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/parallel/engine.h"
#include "training/verification/step_recorder.h"

namespace accelerate {

LocalSGD::LocalSGD(
    const ProcessGroup& group,
    ParallelEngine& engine,
    const std::vector<at::Tensor>& parameters,
    int64_t local_sgd_steps)
    : group_(group),
      no_sync_(engine),
      engine_(engine.shared_from_this()),
      local_sgd_steps_(local_sgd_steps),
      num_exceptions_(std::uncaught_exceptions()) {
  if (auto* recorder = StepRecorder::get()) {
    recorder->note_obstacle(
        "Between averages, LocalSGD lets each process train by itself, so its "
        "steps intentionally differ from those of a single process",
        /*only_excuses=*/false);
  }
  if (local_sgd_steps < 1) {
    throw UsageError(str_cat(
        "[LocalSGD] local_sgd_steps is ",
        local_sgd_steps,
        ", expected at least 1"));
  }
  if (engine.mesh().size(MeshDimension::kTensor) > 1) {
    throw UsageError(
        "[LocalSGD] LocalSGD does not work with tensor parallelism. Remove one "
        "of them");
  }
  std::map<std::string, std::vector<at::Tensor>> alike;
  for (const auto& parameter : parameters) {
    if (!engine.trained(parameter).is_same(parameter)) {
      throw UsageError(
          "[LocalSGD] LocalSGD does not work with sharding, master_weights or "
          "a custom engine. Remove LocalSGD or that setting");
    }
    if (parameter.requires_grad()) {
      alike[str_cat(parameter.scalar_type(), parameter.device())].push_back(
          parameter.detach());
    }
  }
  for (const auto& [kind, tensors] : alike) {
    groups_.push_back(tensors);
  }
  engine_->set_alone(true);
}

LocalSGD::~LocalSGD() noexcept(false) {
  engine_->set_alone(false);
  if (!is_abandoned_ && std::uncaught_exceptions() == num_exceptions_ &&
      num_steps_ % local_sgd_steps_ != 0) {
    average();
  }
}

void LocalSGD::step() {
  ++num_steps_;
  if (num_steps_ % local_sgd_steps_ == 0) {
    average();
  }
}

void LocalSGD::average() {
  if (group_.world_size() == 1) {
    return;
  }
  at::NoGradGuard no_grad;
  for (const auto& tensors : groups_) {
    std::vector<at::Tensor> flat;
    std::vector<int64_t> sizes;
    for (const auto& tensor : tensors) {
      flat.push_back(tensor.flatten());
      sizes.push_back(tensor.numel());
    }
    auto joined = at::cat(flat);
    group_.all_reduce(joined, ReduceOp::kMean);
    const auto averaged = joined.split_with_sizes(sizes);
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(averaged[i].view_as(tensors[i]));
    }
  }
}

} // namespace accelerate
