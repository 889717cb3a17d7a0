// SPDX-License-Identifier: Apache-2.0
#include "training/optim/optimizer_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "core/observe/rank_record.h"
#include "training/parallel/engine_scope.h"
#include "training/parallel/recorded_range.h"

namespace accelerate {
namespace {

/// A state entry that belongs to a slice.
struct SliceEntry {
  std::string key;
  const StateValue& value;
  const at::Tensor& trained;
  /// The shape of the tensor that ranks train together.
  std::vector<int64_t> sizes;
  const TensorPieces& pieces;
};

// Moments have the shape of the trained tensor, but counters do not. If the
// parameter has no dimensions, they are distinguished by name. These are the
// counters of NAdam, ASGD, and torch's Adam and similar optimizers.
bool is_counter(const SliceEntry& entry) {
  constexpr const char* kNames[] = {".step", ".mu_product", ".eta", ".mu"};
  return entry.sizes.empty() &&
         std::any_of(
             std::begin(kNames), std::end(kNames), [&](const char* name) {
               return entry.key.ends_with(name);
             });
}

} // namespace

OptimizerStep::OptimizerStep(
    std::unique_ptr<OptimizerAdapter> optimizer,
    std::shared_ptr<StepState> step_state,
    std::shared_ptr<GradScaler> scaler,
    std::weak_ptr<StateRegistry> registry)
    : optimizer_(std::move(optimizer)),
      step_state_(std::move(step_state)),
      scaler_(std::move(scaler)),
      registry_(std::move(registry)),
      num_cleared_(step_state_->num_synchronised()) {}

OptimizerStep::~OptimizerStep() {
  // Another optimizer may be created at the same address.
  if (scaler_) {
    scaler_->forget(this);
  }
}

void OptimizerStep::add_scheduler(const std::shared_ptr<Stateful>& scheduler) {
  has_scheduler_ = true;
  if (const auto registry = registry_.lock()) {
    registry->add_optional("scheduler", scheduler);
  }
}

void OptimizerStep::note_shared() {
  if (rates_when_shared_.empty()) {
    rates_when_shared_ = optimizer_->learning_rates();
  }
}

bool OptimizerStep::has_unsaved_schedule() {
  return !has_scheduler_ && !rates_when_shared_.empty() &&
         rates_when_shared_ != optimizer_->learning_rates();
}

void OptimizerStep::wire(
    const std::shared_ptr<ParallelEngine>& engine,
    const NamedParameters& parameters) {
  num_groups_ = optimizer_->num_groups();
  std::unordered_set<const c10::TensorImpl*> own;
  for (const auto& parameter : optimizer_->parameters()) {
    own.insert(parameter.unsafeGetTensorImpl());
  }
  EngineParameters owned{engine, {}, {}, {}};
  std::vector<Replacement> replacements;
  for (const auto& [name, parameter] : parameters) {
    if (!own.contains(parameter.unsafeGetTensorImpl()) ||
        engine_of(parameter)) {
      continue;
    }
    const auto& trained = engine->trained(parameter);
    if (engine->pieces(parameter) && !optimizer_->why_no_slices().empty()) {
      throw UsageError(str_cat(
          "[prepare] The optimizer ",
          optimizer_->why_no_slices(),
          ", but each rank only has a shard of '",
          name,
          "'. Use AdamW, or turn sharding off"));
    }
    if (const auto& held = engine->held_pieces(parameter)) {
      optimizer_->divide_state(
          name, parameter, engine->whole_sizes(parameter), *held);
    }
    if (!trained.is_same(parameter)) {
      replacements.push_back({name, parameter, trained});
    }
    owned.names.push_back(name);
    owned.parameters.push_back(parameter);
    owned.trained.push_back(trained);
  }
  if (owned.parameters.empty()) {
    return;
  }
  if (!replacements.empty()) {
    optimizer_->replace(replacements);
  }
  for (const auto& trained : owned.trained) {
    owner_of_[trained.unsafeGetTensorImpl()] = owned_.size();
  }
  owned_.push_back(std::move(owned));
  const bool is_known =
      std::any_of(engines_.begin(), engines_.end(), [&](const auto& known) {
        return known.lock() == engine;
      });
  // A local engine's callbacks do nothing.
  if (!is_known && !engine->is_local()) {
    engines_.push_back(engine);
    if (!index_) {
      index_ = step_state_->add_optimizer();
    }
  }
}

std::shared_ptr<ParallelEngine> OptimizerStep::engine_of(
    const at::Tensor& trained) const {
  const auto found = owner_of_.find(trained.unsafeGetTensorImpl());
  return found == owner_of_.end() ? nullptr
                                  : owned_[found->second].engine.lock();
}

void OptimizerStep::follow_groups() {
  const auto num_groups = optimizer_->num_groups();
  if (std::exchange(num_groups_, num_groups) != num_groups && wire_) {
    wire_();
  }
}

std::optional<size_t> OptimizerStep::unowned_parameter() {
  constexpr int kMostLooks = 64;
  if (num_looks_++ >= kMostLooks) {
    return std::nullopt;
  }
  follow_groups();
  const auto parameters = optimizer_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].grad().defined() && !engine_of(parameters[i])) {
      return i;
    }
  }
  return std::nullopt;
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
  if (scaler_ && syncs() && !scaler_->is_unscaled(this)) {
    are_used_ = are_dropped_ = false;
    scaler_->unscale_gradients(this, gradients());
  }
}

std::vector<at::Tensor> OptimizerStep::take_unscaled() {
  if (!scaler_ || are_dropped_ || !scaler_->is_unscaled(this)) {
    return {};
  }
  auto left = gradients();
  if (!left.empty() && !are_used_) {
    scaler_->forget(this);
  }
  return left;
}

// Called before a backward and not after each optimizer's step, because another
// optimizer may still hold gradients with the old scale.
void move_scale(
    GradScaler& scaler,
    const std::vector<std::shared_ptr<OptimizerStep>>& optimizers) {
  std::vector<at::Tensor> left;
  for (const auto& optimizer : optimizers) {
    const auto own = optimizer->take_unscaled();
    left.insert(left.end(), own.begin(), own.end());
  }
  scaler.update();
  scaler.scale_again(left);
}

void OptimizerStep::check_gradients() const {
  for (const auto& known : engines_) {
    const auto engine = known.lock();
    if (engine && engine->has_unsynchronised()) {
      throw UsageError(
          "[step] The last backward pass failed, so the gradients differ "
          "between ranks. Call zero_grad() after a failed backward pass, and "
          "step() only after a successful one");
    }
  }
}

void OptimizerStep::step(StepScalars scalars) {
  ++num_calls_;
  is_done_ = false;
  was_skipped_ = false;
  overflow_ = at::Tensor();
  if (!syncs()) {
    return;
  }
  check_gradients();
  follow_groups();
  step_state_->end_step();
  const PhaseScope scope_of_time(accelerate::StepPhase::kOptimizer);
  const auto recorded = record_range(kRecordedOptimizer);
  RankRecord::of_this_thread().note_update();
  EngineScope scope(
      engines_,
      [](ParallelEngine& engine) -> ParallelEngine& { return engine; },
      &ParallelEngine::before_step,
      &ParallelEngine::abandon_step);
  if (scaler_) {
    unscale();
    overflow_ = scaler_->overflow_of(this);
    are_used_ = true;
  }
  const bool takes_scalars = optimizer_->takes_scalars();
  if (takes_scalars && overflow_.defined()) {
    scalars.found_inf = overflow_;
  }
  if (!takes_scalars && !scalars.learning_rates.empty()) {
    throw UsageError(str_cat(
        "[step] This optimizer does not support learning rates on the device. ",
        hint(
            "Use AdamW, Adam or SGD from accelerate::optim",
            "Use an optimizer with fused=True")));
  }
  if (step_state_->is_captured()) {
    if (!optimizer_->has_all_state()) {
      throw UsageError(
          "[capture] A parameter receives its first gradient in the recorded "
          "step, so every replay would create its optimizer state again. Use "
          "the parameter in an earlier step");
    }
    scalars.learning_rates = device_rates_;
  }
  const bool is_left_out = !takes_scalars && was_skipped();
  if (!is_left_out) {
    const bool takes_copies = optimizer_->takes_copies();
    for (const auto& known : engines_) {
      const auto engine = known.lock();
      const auto* copies =
          engine ? engine->reduced_copies(takes_copies) : nullptr;
      if (copies != nullptr) {
        scalars.copies.push_back(copies);
      }
    }
    if (observer_) {
      observer_->before_update(*this);
    }
    optimizer_->step(scalars);
  }
  is_done_ = true;
  if (index_) {
    step_state_->note_update(*index_, !holds_synchronised());
  }
  scope.finish(
      [&](ParallelEngine& engine) { engine.after_step(!is_left_out); });
  if (observer_ && !is_left_out) {
    observer_->after_update(*this);
  }
}

void OptimizerStep::set_done(bool is_done, at::Tensor overflow) {
  is_done_ = is_done;
  overflow_ = std::move(overflow);
  was_skipped_ = false;
}

bool OptimizerStep::holds_scaled_gradients() {
  return scaler_ && !scaler_->is_unscaled(this) && !gradients().empty();
}

bool OptimizerStep::did_step() const {
  if (step_state_->is_captured()) {
    throw UsageError(
        "[capture] did_step() or a scheduler's step() inside the captured "
        "function would be skipped by replays. Call it after the function");
  }
  return is_done_ && !was_skipped() && syncs();
}

void OptimizerStep::write_learning_rates(c10::Device device) {
  const auto rates = optimizer_->learning_rates();
  for (size_t i = 0; i < rates.size(); ++i) {
    if (i == rates_.size()) {
      rates_.push_back(rates[i]);
      device_rates_.push_back(
          at::full({}, rates[i], at::TensorOptions(at::kFloat).device(device)));
    } else if (rates_[i] != rates[i]) {
      rates_[i] = rates[i];
      device_rates_[i].fill_(rates[i]);
    }
  }
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
  if (step_state_->keeps_gradients()) {
    how = Zeroing::kFill;
  }
  optimizer_->zero_grad(how);
  for (size_t i = 0; !engines_.empty() && i < owned_.size(); ++i) {
    if (const auto engine = owned_[i].engine.lock()) {
      engine->zero_gradients(owned_[i].parameters, how);
    }
  }
  are_dropped_ = true;
  num_cleared_ = step_state_->num_synchronised();
}

NamedParameters OptimizerStep::names() const {
  NamedParameters names;
  std::unordered_map<const c10::TensorImpl*, std::string> known;
  for (const auto& owned : owned_) {
    for (size_t i = 0; i < owned.names.size(); ++i) {
      known.emplace(owned.trained[i].unsafeGetTensorImpl(), owned.names[i]);
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

template <class Work>
void OptimizerStep::for_each_slice(const StateDict& state, Work&& work) const {
  for (const auto& owned : owned_) {
    const auto engine = owned.engine.lock();
    for (size_t i = 0; engine && i < owned.parameters.size(); ++i) {
      const auto& parameter = owned.parameters[i];
      const auto& pieces = engine->pieces(parameter);
      if (!pieces) {
        continue;
      }
      const std::string prefix = str_cat("state.", owned.names[i]);
      for (const auto& [key, value] : state.section(prefix)) {
        work(SliceEntry{
            str_cat(prefix, '.', key),
            value,
            owned.trained[i],
            engine->whole_sizes(parameter),
            *pieces});
      }
    }
  }
}

StateDict OptimizerStep::state_dict() const {
  const StateDict held = optimizer_->state(names());
  StateDict state = held;
  for_each_slice(held, [&](const SliceEntry& entry) {
    const auto* values = std::get_if<at::Tensor>(&entry.value);
    if (values != nullptr && values->sizes() == entry.trained.sizes()) {
      state.set(entry.key, TensorSlice{*values, entry.sizes, entry.pieces});
    }
  });
  return state;
}

std::map<std::string, TensorPieces> OptimizerStep::pieces_needed(
    const StateDict& saved) const {
  std::map<std::string, TensorPieces> needed;
  for_each_slice(saved, [&](const SliceEntry& entry) {
    if (!is_counter(entry) && whole_shape(entry.value) == entry.sizes) {
      needed[entry.key] = entry.pieces;
    }
  });
  return needed;
}

StateDict OptimizerStep::of_this_rank(const StateDict& saved) const {
  StateDict state = saved;
  for_each_slice(saved, [&](const SliceEntry& entry) {
    const auto* whole = std::get_if<at::Tensor>(&entry.value);
    if (whole != nullptr && !is_counter(entry) &&
        whole->sizes() == entry.sizes) {
      state.set(
          entry.key,
          elements_at(*whole, entry.pieces).view(entry.trained.sizes()));
    }
    const auto* slice = std::get_if<TensorSlice>(&entry.value);
    if (slice == nullptr) {
      return;
    }
    if (slice->whole != entry.sizes || slice->pieces != entry.pieces) {
      throw UsageError(str_cat(
          "[load_state_dict] '",
          entry.key,
          "' has ",
          slice->values.numel(),
          " elements of a tensor of shape ",
          at::IntArrayRef(slice->whole),
          ", but this rank trains ",
          entry.trained.numel(),
          " different elements of a tensor of shape ",
          at::IntArrayRef(entry.sizes),
          ". Load the state with the number of ranks that saved it"));
    }
    state.set(entry.key, slice->values.view(entry.trained.sizes()));
  });
  return state;
}

void OptimizerStep::check_state_dict(const StateDict& state) const {
  optimizer_->check_state(names(), of_this_rank(state));
}

void OptimizerStep::load_state_dict(const StateDict& state) {
  optimizer_->load_state(names(), of_this_rank(state));
  ++num_loads_;
  if (!rates_when_shared_.empty()) {
    rates_when_shared_ = optimizer_->learning_rates();
  }
  // Gradients of models are dropped together with their accumulation.
  num_cleared_ = step_state_->num_synchronised();
  for (auto parameter : optimizer_->parameters()) {
    if (!engine_of(parameter)) {
      parameter.mutable_grad().reset();
    }
  }
  if (scaler_) {
    scaler_->forget(this);
  }
  set_done(false);
}

} // namespace accelerate
