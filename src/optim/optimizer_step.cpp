// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

/// The seams of a step, abandoned where it goes before `finish`.
class StepScope {
 public:
  using Engines = std::vector<std::weak_ptr<ParallelEngine>>;

  explicit StepScope(const Engines& engines) : engines_(engines) {
    for_each([](ParallelEngine& engine) { engine.before_step(); });
  }
  ~StepScope() {
    if (!is_finished_) {
      for_each([](ParallelEngine& engine) { engine.abandon_step(); });
    }
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

  void finish(bool did_step) {
    for_each([&](ParallelEngine& engine) { engine.after_step(did_step); });
    is_finished_ = true;
  }

 private:
  template <class Work>
  void for_each(Work&& work) {
    for (const auto& weak : engines_) {
      if (const auto engine = weak.lock()) {
        work(*engine);
      }
    }
  }

  const Engines& engines_;
  bool is_finished_ = false;
};

} // namespace

void OptimizerAdapter::zero_grad(Zeroing how) {
  for (auto& parameter : parameters()) {
    if (how == Zeroing::kDrop) {
      parameter.mutable_grad() = at::Tensor();
    } else if (parameter.grad().defined()) {
      parameter.mutable_grad().zero_();
    }
  }
}

OptimizerStep::OptimizerStep(
    std::unique_ptr<OptimizerAdapter> optimizer,
    std::shared_ptr<StepState> step_state,
    std::shared_ptr<GradScaler> scaler)
    : optimizer_(std::move(optimizer)),
      step_state_(std::move(step_state)),
      scaler_(std::move(scaler)) {}

void OptimizerStep::wire(
    const std::shared_ptr<ParallelEngine>& engine,
    const NamedParameters& parameters) {
  std::unordered_set<const c10::TensorImpl*> own;
  for (const auto& parameter : optimizer_->parameters()) {
    own.insert(parameter.unsafeGetTensorImpl());
  }
  Part part{engine, {}, {}, {}};
  std::vector<Replacement> replacements;
  for (const auto& [name, parameter] : parameters) {
    if (!own.contains(parameter.unsafeGetTensorImpl()) ||
        engine_of(parameter)) {
      continue;
    }
    const auto trained = engine->trained(parameter);
    if (!trained.is_same(parameter)) {
      replacements.push_back({name, parameter, trained});
    }
    part.names.push_back(name);
    part.parameters.push_back(parameter);
    part.trained.push_back(trained);
  }
  if (part.parameters.empty()) {
    return;
  }
  if (!replacements.empty()) {
    optimizer_->replace(replacements);
  }
  for (const auto& trained : part.trained) {
    part_of_[trained.unsafeGetTensorImpl()] = parts_.size();
  }
  parts_.push_back(std::move(part));
  const bool is_known =
      std::any_of(engines_.begin(), engines_.end(), [&](const auto& known) {
        return known.lock() == engine;
      });
  if (!is_known) {
    engines_.push_back(engine);
  }
}

std::shared_ptr<ParallelEngine> OptimizerStep::engine_of(
    const at::Tensor& trained) const {
  const auto found = part_of_.find(trained.unsafeGetTensorImpl());
  return found == part_of_.end() ? nullptr
                                 : parts_[found->second].engine.lock();
}

std::vector<at::Tensor> OptimizerStep::gradients() {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : optimizer_->parameters()) {
    const auto engine = engine_of(parameter);
    auto gradient = engine ? engine->gradient(parameter) : parameter.grad();
    if (gradient.defined()) {
      gradients.push_back(std::move(gradient));
    }
  }
  return gradients;
}

void OptimizerStep::unscale() {
  if (scaler_ && syncs()) {
    scaler_->unscale_gradients(this, gradients());
  }
}

void OptimizerStep::step(StepScalars scalars) {
  is_done_ = false;
  was_skipped_ = false;
  overflow_ = at::Tensor();
  if (!syncs()) {
    return;
  }
  step_state_->end_step();
  StepScope scope(engines_);
  if (scaler_) {
    unscale();
    overflow_ = scaler_->overflow_of(this);
    scaler_->finish(this);
  }
  const bool takes_scalars = optimizer_->takes_scalars();
  if (takes_scalars && overflow_.defined()) {
    scalars.found_inf = overflow_;
  }
  if (!takes_scalars && !scalars.learning_rates.empty()) {
    throw UsageError(
        "[step] got learning rates on the device for an optimizer that takes "
        "numbers of the host, expected accelerate::optim's AdamW, Adam or SGD");
  }
  const bool is_left_out = !takes_scalars && was_skipped();
  if (!is_left_out) {
    optimizer_->step(scalars);
  }
  is_done_ = true;
  scope.finish(!is_left_out);
}

bool OptimizerStep::was_skipped() const {
  if (overflow_.defined()) {
    was_skipped_ = overflow_.item<float>() != 0;
    overflow_ = at::Tensor();
  }
  return was_skipped_;
}

void OptimizerStep::zero_grad(Zeroing how) {
  if (!syncs()) {
    return;
  }
  optimizer_->zero_grad(how);
  for (const auto& part : parts_) {
    if (const auto engine = part.engine.lock()) {
      engine->zero_gradients(part.parameters, how);
    }
  }
  if (scaler_) {
    scaler_->finish(this);
  }
}

NamedParameters OptimizerStep::names() const {
  NamedParameters names;
  std::unordered_map<const c10::TensorImpl*, std::string> known;
  for (const auto& part : parts_) {
    for (size_t i = 0; i < part.names.size(); ++i) {
      known.emplace(part.trained[i].unsafeGetTensorImpl(), part.names[i]);
    }
  }
  for (const auto& parameter : optimizer_->parameters()) {
    const auto found = known.find(parameter.unsafeGetTensorImpl());
    names.emplace_back(
        found != known.end() ? found->second
                             : str_cat("parameters.", names.size()),
        parameter);
  }
  return names;
}

// Moments of a slice have its shape; counters do not.
template <class Work>
void OptimizerStep::for_each_slice(StateDict& state, Work&& work) const {
  for (const auto& part : parts_) {
    const auto engine = part.engine.lock();
    for (size_t i = 0; engine && i < part.parameters.size(); ++i) {
      const auto& parameter = part.parameters[i];
      const auto begin = engine->slice_begin(parameter);
      if (!begin) {
        continue;
      }
      const std::string prefix = str_cat("state.", part.names[i]);
      for (const auto& [key, value] : state.part(prefix)) {
        work(
            str_cat(prefix, '.', key),
            value,
            part.trained[i],
            parameter,
            *begin);
      }
    }
  }
}

StateDict OptimizerStep::state_dict() const {
  StateDict state = optimizer_->state(names());
  for_each_slice(
      state,
      [&](const std::string& key,
          const StateValue& value,
          const at::Tensor& trained,
          const at::Tensor& parameter,
          int64_t begin) {
        const auto* values = std::get_if<at::Tensor>(&value);
        if (values != nullptr && values->sizes() == trained.sizes()) {
          state.set(key, TensorSlice{*values, parameter.sizes().vec(), begin});
        }
      });
  return state;
}

void OptimizerStep::load_state_dict(const StateDict& saved) {
  StateDict state = saved;
  for_each_slice(
      state,
      [&](const std::string& key,
          const StateValue& value,
          const at::Tensor& trained,
          const at::Tensor& parameter,
          int64_t begin) {
        const auto* slice = std::get_if<TensorSlice>(&value);
        if (slice == nullptr) {
          return;
        }
        if (slice->begin != begin || slice->whole != parameter.sizes().vec() ||
            slice->values.numel() != trained.numel()) {
          throw UsageError(str_cat(
              "[load_state_dict] '",
              key,
              "' holds ",
              slice->values.numel(),
              " numbers from ",
              slice->begin,
              " on, expected ",
              trained.numel(),
              " from ",
              begin,
              " on, as this rank trains; load it on as many ranks as saved "
              "it"));
        }
        state.set(key, slice->values.view(trained.sizes()));
      });
  optimizer_->load_state(names(), state);
}

} // namespace accelerate
