// SPDX-License-Identifier: Apache-2.0
#include "accelerate/detail/forward_scope.h"

#include <ATen/ATen.h>

#include "core/observe/rank_record.h"
#include "training/parallel/recorded_range.h"
#include "training/run/model_context.h"
#include "training/run/verified_steps.h"

namespace accelerate {
namespace detail {
namespace {

ModelContext& checked(ModelContext& context) {
  context.check_join();
  return context;
}

} // namespace

ForwardScope::ForwardScope(ModelContext& context)
    : context_(checked(context)),
      phase_before_(static_cast<uint8_t>(
          RankRecord::of_this_thread().enter(StepPhase::kForward))),
      recorded_(record_range(kRecordedForward)) {
  try {
    if (at::GradMode::is_enabled() && context_.renew &&
        context_.engine->is_outdated()) {
      context_.renew();
    }
    if (context_.verified && at::GradMode::is_enabled()) {
      context_.verified->begin_forward(context_);
    }
    context_.engine->before_forward();
    if (context_.verified && at::GradMode::is_enabled()) {
      context_.verified->before_forward(context_);
    }
  } catch (...) {
    context_.engine->abandon_forward();
    RankRecord::of_this_thread().leave(static_cast<StepPhase>(phase_before_));
    throw;
  }
  if (at::GradMode::is_enabled()) {
    context_.step_state->note_forward();
  }
  if (context_.precision != Precision::kNo && !context_.weights) {
    autocast_.emplace(context_.device, context_.precision);
  }
}

ForwardScope::~ForwardScope() {
  if (!is_finished_) {
    context_.engine->abandon_forward();
  }
  RankRecord::of_this_thread().leave(static_cast<StepPhase>(phase_before_));
}

bool ForwardScope::wants_outputs() const {
  return context_.engine->wants_outputs() ||
         (context_.precision != Precision::kNo && context_.outputs_to_fp32);
}

at::Tensor* ForwardScope::cast_input(const at::Tensor& input) {
  context_.note_input(input);
  if (!context_.weights || !input.defined() ||
      input.scalar_type() != at::kFloat) {
    return nullptr;
  }
  inputs_.push_back(input.to(*context_.weights));
  return &inputs_.back();
}

void ForwardScope::finish(std::span<at::Tensor* const> outputs) {
  autocast_.reset();
  if (context_.precision != Precision::kNo && context_.outputs_to_fp32) {
    for (at::Tensor* output : outputs) {
      if (output->defined() && (output->scalar_type() == at::kHalf ||
                                output->scalar_type() == at::kBFloat16)) {
        *output = output->to(at::kFloat);
      }
    }
  }
  context_.engine->after_forward(outputs);
  if (context_.verified && at::GradMode::is_enabled()) {
    context_.verified->after_forward(context_);
  }
  is_finished_ = true;
}

ParallelEngine& engine_of(ModelContext& context) {
  return *context.engine;
}

} // namespace detail

} // namespace accelerate
