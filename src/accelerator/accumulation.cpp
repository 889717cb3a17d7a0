// SPDX-License-Identifier: Apache-2.0
#include "accelerator/accumulation.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "base/str.h"
#include "parallel/gradient_norm.h"

namespace accelerate {

LossWeight::LossWeight(double count)
    : count_(at::full({}, count, at::kDouble)) {
  if (!(count >= 0)) {
    throw UsageError(str_cat(
        "[backward] got weight ",
        count,
        ", expected the number of samples or tokens of the loss"));
  }
}
LossWeight::LossWeight(at::Tensor count) {
  if (!count.defined() || count.numel() != 1) {
    throw UsageError(str_cat(
        "[backward] got a weight ",
        count.defined() ? str_cat("of shape ", count.sizes()) : "undefined",
        ", expected a tensor of one number"));
  }
  count_ = count.detach().reshape({}).to(at::kDouble);
}

Accumulation::Accumulation(AccumulationOptions options) : options_(options) {
  if (options_.num_steps < 1) {
    throw ConfigError(str_cat(
        "[Accelerator] got gradient_accumulation_steps ",
        options_.num_steps,
        ", expected at least 1"));
  }
}

void Accumulation::begin(
    StepState& step_state,
    std::vector<std::shared_ptr<ModelContext>> models,
    AccumulateGuard& guard) {
  ++num_begun_;
  const auto batch = step_state.batch();
  const bool is_last = options_.sync_with_dataloader && batch && batch->is_last;
  const bool sync = is_last || num_begun_ % options_.num_steps == 0;
  if (sync) {
    num_begun_ = 0;
  }
  step_state.set_sync_gradients(sync);
  models_ = std::move(models);
  if (!sync && !options_.sync_each_batch) {
    for (const auto& model : models_) {
      guard.hold_back(*model->engine);
    }
  }
}

void Accumulation::check_same_kind(bool is_weighed) {
  if (num_backwards_ > 0 && is_weighed != is_weighed_) {
    throw UsageError(
        "[backward] some losses of the window have a weight and some have "
        "none; give it to all of them, or to none");
  }
  is_weighed_ = is_weighed;
}

at::Tensor Accumulation::weigh(
    const at::Tensor& loss,
    const std::optional<LossWeight>& weight,
    const StepState& step_state,
    const ProcessGroup& group) {
  check_same_kind(weight.has_value());
  const bool ends = step_state.sync_gradients();
  const bool is_first = num_backwards_ == 0;
  num_backwards_ = ends ? 0 : num_backwards_ + 1;
  if (!weight) {
    return options_.num_steps == 1
               ? loss
               : loss / static_cast<double>(options_.num_steps);
  }
  const auto count = weight->count().to(loss.device());
  total_ = is_first ? count.clone() : total_ + count;
  if (!ends) {
    if (is_first) {
      // Near the right size, so that fp16 gradients keep their range; one for
      // all ranks where gradients meet before the sum is known.
      divisor_ = options_.sync_each_batch
                     ? at::ones_like(count)
                     : at::clamp_min(count, 1.0) *
                           static_cast<double>(options_.num_steps);
    }
    return loss * (count / divisor_).to(loss.scalar_type());
  }
  group.all_reduce(total_, ReduceOp::kSum);
  // Gradients are averaged over ranks on their way: undo the division.
  const auto unit = group.world_size() / at::clamp_min(total_, 1e-12);
  if (!is_first) {
    const auto correction = (divisor_ * unit).to(at::kFloat);
    for (const auto& model : models_) {
      scale_gradients(model->model.parameters, correction);
    }
  }
  return loss * (count * unit).to(loss.scalar_type());
}

} // namespace accelerate
