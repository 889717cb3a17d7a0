// SPDX-License-Identifier: Apache-2.0
#include "run/training_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "accelerate/error.h"
#include "base/str.h"
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
          "precision fp16; convert the model to fp32 first"));
    }
  }
}

std::shared_ptr<GradScaler> make_scaler(
    const Assembly& assembly,
    const GradScalerOptions& options) {
  if (assembly.precision != Precision::kFp16) {
    return nullptr;
  }
  return std::make_shared<GradScaler>(
      options, [group = assembly.group](at::Tensor& flag) {
        group.all_reduce(flag, ReduceOp::kMax);
      });
}

} // namespace

TrainingRun::TrainingRun(
    AcceleratorOptions options,
    const EnvLookup& env,
    std::shared_ptr<StepState> step_state)
    : options_(std::move(options)),
      assembly_(assemble(options_, env)),
      step_state_(std::move(step_state)),
      accumulation_(
          {assembly_.gradient_accumulation_steps,
           options_.accumulation.sync_with_dataloader,
           options_.accumulation.sync_each_batch}),
      scaler_(make_scaler(assembly_, options_.scaler)) {}

DistributedType TrainingRun::distributed_type() const {
  if (group().is_solo()) {
    return DistributedType::kNo;
  }
  return device().is_cuda() ? DistributedType::kMultiGpu
                            : DistributedType::kMultiCpu;
}

std::shared_ptr<ModelContext> TrainingRun::prepare_model(
    ParameterSet model,
    bool evaluation_mode) {
  auto context = std::make_shared<ModelContext>();
  context->model = std::move(model);
  context->as_prepared = ParameterSnapshot(context->model);
  check_precision(context->model, precision());
  context->engine = evaluation_mode
                        ? make_single_device_engine()
                        : make_engine(assembly_, context->model, options_);
  context->step_state = step_state_;
  context->device = device().type();
  context->precision = precision();
  context->outputs_to_fp32 = options_.outputs_to_fp32;
  has_models_ = has_models_ || !evaluation_mode;
  return context;
}

std::shared_ptr<OptimizerStep> TrainingRun::prepare_optimizer(
    std::unique_ptr<OptimizerAdapter> optimizer) {
  std::erase_if(optimizers_, [](const auto& entry) { return entry.expired(); });
  auto step = std::make_shared<OptimizerStep>(
      std::move(optimizer), step_state_, scaler_);
  optimizers_.push_back(step);
  return step;
}

void TrainingRun::backward(
    const at::Tensor& loss,
    const std::optional<LossWeight>& weight,
    const RunAutograd& run) {
  const bool may_be_raw = allows_raw_models_alone_ && group().world_size() == 1;
  if (has_models_ && !may_be_raw && !step_state_->has_forward()) {
    throw UsageError(
        "[backward] no prepared model was called since the last step; compute "
        "the loss with the model that prepare() gave back, or its gradients "
        "do not meet those of the other processes");
  }
  at::Tensor weighted =
      accumulation_.weigh(loss, weight, *step_state_, group());
  if (scaler_) {
    // Not after each optimizer's step: another may still hold gradients of the
    // old scale.
    if (scaler_->is_finished()) {
      scaler_->update();
    }
    weighted = scaler_->scale(weighted);
  }
  group().guard("backward", [&] { run(weighted); });
  step_state_->note_backward();
}

AccumulateGuard TrainingRun::begin_micro_batch(
    std::vector<std::shared_ptr<ModelContext>> models) {
  AccumulateGuard guard;
  accumulation_.begin(*step_state_, std::move(models), guard);
  return guard;
}

std::vector<std::shared_ptr<OptimizerStep>> TrainingRun::living_optimizers()
    const {
  std::vector<std::shared_ptr<OptimizerStep>> living;
  for (const auto& optimizer : optimizers_) {
    if (auto alive = optimizer.lock()) {
      living.push_back(std::move(alive));
    }
  }
  return living;
}

void TrainingRun::unscale_gradients() {
  for (const auto& optimizer : living_optimizers()) {
    optimizer->unscale();
  }
}

void TrainingRun::unscale_owners_of(const std::vector<at::Tensor>& parameters) {
  if (!scaler_) {
    return;
  }
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : parameters) {
    wanted.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& optimizer : living_optimizers()) {
    const auto own = optimizer->optimizer().parameters();
    if (std::any_of(own.begin(), own.end(), [&](const auto& p) {
          return wanted.contains(p.unsafeGetTensorImpl());
        })) {
      optimizer->unscale();
    }
  }
}

at::Tensor TrainingRun::clip_grad_norm(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type) {
  if (!step_state_->sync_gradients()) {
    return at::full({}, std::nan(""));
  }
  unscale_owners_of(parameters);
  return clip_gradient_norm(parameters, max_norm, norm_type);
}

void TrainingRun::clip_grad_value(
    const std::vector<at::Tensor>& parameters,
    double limit) {
  if (step_state_->sync_gradients()) {
    unscale_owners_of(parameters);
    clip_gradient_values(parameters, limit);
  }
}

bool TrainingRun::optimizer_step_was_skipped() const {
  const auto living = living_optimizers();
  return std::any_of(living.begin(), living.end(), [](const auto& optimizer) {
    return optimizer->was_skipped();
  });
}

int64_t TrainingRun::num_scheduler_moves(
    const std::vector<std::shared_ptr<OptimizerStep>>& optimizers) const {
  const bool is_skipped =
      std::any_of(optimizers.begin(), optimizers.end(), [](const auto& step) {
        return step->was_skipped();
      });
  if (is_skipped || !step_state_->sync_gradients()) {
    return 0;
  }
  return options_.scheduler_stepping == SchedulerStepping::kPerProcess
             ? topology().world_size
             : 1;
}

bool TrainingRun::check_trigger() {
  auto flag = at::full({1}, trigger_ ? 1 : 0, at::kLong);
  group().all_reduce(flag, ReduceOp::kMax);
  trigger_ = false;
  return flag.item<int64_t>() > 0;
}

std::vector<at::Tensor> TrainingRun::gather_real(
    const detail::Leaves& leaves) const {
  detail::Leaves real = leaves;
  for (auto& tensor : real.tensors) {
    if (tensor.defined() && tensor.dim() > 0) {
      tensor = tensor.narrow(0, 0, num_real(tensor.size(0)));
    }
  }
  return detail::all_gather(group(), real);
}

int64_t TrainingRun::num_real(int64_t size) const {
  const auto batch = step_state_->batch_in_use();
  const bool is_of_batch = batch && size == batch->num_samples;
  return is_of_batch ? batch->num_real : size;
}

} // namespace accelerate
