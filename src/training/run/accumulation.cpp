// SPDX-License-Identifier: Apache-2.0
#include "training/run/accumulation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"

namespace accelerate {
namespace {

std::string names_in(const StateDict& window) {
  std::string names;
  for (int64_t i = 0; i < window.get<int64_t>("num_models"); ++i) {
    names += window.get<std::string>(str_cat("model.", i, ".name")) + ' ';
  }
  return names;
}

at::Tensor mean_of(
    const std::vector<const StateDict*>& windows,
    const std::string& name) {
  at::Tensor sum;
  for (const auto* window : windows) {
    if (window->contains(name)) {
      const auto& value = window->get<at::Tensor>(name);
      sum = sum.defined() ? sum + value : value;
    }
  }
  return sum / static_cast<double>(windows.size());
}

/// Of one set of models, on all ranks.
StateDict joined_window(
    const std::vector<const StateDict*>& windows,
    int num_ranks) {
  StateDict joined = *windows.front();
  const bool is_weighted = joined.contains("divisor");
  // Plain gradients are finally averaged over ranks, whatever their number.
  // Weighted ones are sums over samples: the new ranks together have as much as
  // the old ones had.
  std::vector<StateDict> sums;
  for (const auto* window : windows) {
    auto& sum = sums.emplace_back(*window);
    for (const auto& [name, value] : *window) {
      const auto* gradient = std::get_if<at::Tensor>(&value);
      if (is_weighted && gradient != nullptr && name != "total" &&
          name != "divisor") {
        const auto& divisor = window->get<at::Tensor>("divisor");
        sum.set(name, *gradient * divisor.to(gradient->scalar_type()));
      }
    }
  }
  std::vector<const StateDict*> summed;
  for (const auto& sum : sums) {
    summed.push_back(&sum);
  }
  const double share =
      is_weighted ? static_cast<double>(windows.size()) / num_ranks : 1.0;
  for (const auto& [name, value] : sums.front()) {
    if (!std::holds_alternative<at::Tensor>(value)) {
      continue;
    }
    auto part = mean_of(summed, name);
    if (name != "divisor") {
      part = part * share;
    }
    if (is_weighted && name != "divisor" && name != "total") {
      part = part / mean_of(summed, "divisor").to(part.scalar_type());
    }
    joined.set(name, part);
  }
  return joined;
}

// Sums beyond these limits, and gradients divided by them, leave the range of
// the gradients' dtype.
constexpr double kLeastWeight = 1e-12;
constexpr double kMostWeight = 1e30;

void check_weight(double count) {
  if (count != 0 && !(count >= kLeastWeight && count <= kMostWeight)) {
    throw UsageError(str_cat(
        "[backward] weight is ",
        count,
        ", expected 0 or a value from ",
        kLeastWeight,
        " to ",
        kMostWeight,
        ". Pass the number of samples or tokens in the loss"));
  }
}

} // namespace

NoSyncGuard::NoSyncGuard(ParallelEngine& engine)
    : engine_(engine.shared_from_this()), was_syncing_(engine.sync()) {
  engine_->set_sync(false);
}
NoSyncGuard::~NoSyncGuard() {
  engine_->set_sync(was_syncing_);
}

LossWeight::LossWeight(double count)
    : count_(at::full({}, count, at::kDouble)) {
  check_weight(count);
}
LossWeight::LossWeight(at::Tensor count) {
  const bool is_number = count.defined() && count.layout() == at::kStrided &&
                         !count.is_meta() && !count.is_nested() &&
                         !count.is_quantized() && !count.is_complex() &&
                         count.numel() == 1;
  if (!is_number) {
    throw UsageError(str_cat(
        "[backward] weight is ",
        count.defined()
            ? str_cat(
                  "a ", count.toString(), " with ", count.numel(), " elements")
            : "an undefined tensor",
        ". Pass a number, or a dense tensor with one real element"));
  }
  count_ = count.detach().reshape({}).to(at::kDouble);
  // Reading others would wait for the device.
  if (count_.is_cpu()) {
    check_weight(count_.item<double>());
  }
}

Accumulation::Accumulation(
    int64_t num_steps,
    const AccumulationOptions& options,
    std::shared_ptr<const StateRegistry> registry,
    std::shared_ptr<StepState> step_state)
    : sync_with_dataloader_(options.sync_with_dataloader),
      sync_each_batch_(options.sync_each_batch),
      registry_(std::move(registry)),
      step_state_(std::move(step_state)),
      current_(&windows_[{}]) {
  set_num_steps(num_steps);
}

void Accumulation::set_num_steps(int64_t num_steps) {
  if (num_steps < 1) {
    throw ConfigError(str_cat(
        "[Accelerator] gradient_accumulation_steps is ",
        num_steps,
        ", expected at least 1"));
  }
  num_steps_ = num_steps;
}

std::vector<const ModelContext*> Accumulation::key_of(const Models& models) {
  std::vector<const ModelContext*> key;
  for (const auto& model : models) {
    key.push_back(model.get());
  }
  std::sort(key.begin(), key.end());
  return key;
}

void Accumulation::drop_dead_windows() {
  std::erase_if(windows_, [](const auto& entry) {
    const auto& models = entry.second.models;
    return std::any_of(models.begin(), models.end(), [](const auto& model) {
      return model.expired();
    });
  });
}

void Accumulation::begin(
    StepState& step_state,
    std::vector<std::shared_ptr<ModelContext>> models,
    AccumulateGuard& guard) {
  if (step_state.is_captured()) {
    throw UsageError(
        "[capture] A replay of the recorded step would skip accumulate(). Call "
        "it around the captured function");
  }
  drop_dead_windows();
  Window& window = windows_[key_of(models)];
  if (!window.guard.expired()) {
    // It may hold back gradients that this micro-batch must send.
    throw UsageError(
        "[accumulate] The guard of the previous micro-batch still exists. "
        "Destroy it before the next accumulate(), for example by creating it "
        "in its own block");
  }
  window.guard = guard.life();
  current_ = &window;
  window.models.assign(models.begin(), models.end());
  ++window.num_begun;
  const auto batch = step_state.batch();
  const bool is_last = sync_with_dataloader_ && batch && batch->is_last;
  const bool sync = is_last || window.num_begun >= num_steps_;
  if (sync) {
    window.num_begun = 0;
  }
  step_state.set_sync_gradients(sync);
  // Without accumulation, a rank may leave out a batch without harm.
  if (sync && num_steps_ > 1) {
    step_state.note_due_update();
  }
  if (!sync && !sync_each_batch_) {
    for (const auto& model : models) {
      guard.hold_back(*model->engine);
    }
  }
}

at::Tensor Accumulation::weigh(
    const at::Tensor& loss,
    const std::optional<LossWeight>& weight,
    const StepState& step_state,
    StepReductions& reductions,
    bool is_alone) {
  if (weight && step_state.is_captured()) {
    throw UsageError(
        "[capture] A captured step cannot weight its loss. Call backward() "
        "without a weight");
  }
  Window& window = *current_;
  const bool is_first = window.num_backwards == 0;
  if (!is_first && weight.has_value() != window.is_weighted) {
    throw UsageError(
        "[backward] Only some micro-batches of this accumulation have a "
        "weight. Pass a weight for all of them, or for none");
  }
  window.is_weighted = weight.has_value();
  const bool ends = step_state.sync_gradients();
  window.num_backwards = ends ? 0 : window.num_backwards + 1;
  if (!weight) {
    return num_steps_ == 1 ? loss : loss / static_cast<double>(num_steps_);
  }
  const auto count = weight->count().to(loss.device());
  window.total = is_first ? count.clone() : window.total + count;
  if (!ends) {
    if (is_first) {
      // Roughly the right scale, so that fp16 gradients keep their range; the
      // same on all ranks if gradients are synchronised before the sum is
      // known.
      window.divisor = sync_each_batch_ ? at::ones_like(count)
                                        : at::clamp_min(count, 1.0) *
                                              static_cast<double>(num_steps_);
    }
    return loss * (count / window.divisor).to(loss.scalar_type());
  }
  if (!is_alone && !reductions.is_joining()) {
    // Ranks without a weight would send gradients while these send weights.
    announce(reductions.group(), kWeightedBackward);
  }
  // Gradients are averaged over ranks: undo that division.
  const int64_t divisor =
      is_alone ? 1 : reductions.reduce(window.total, ReduceOp::kSum);
  const auto unit = divisor / at::clamp_min(window.total, kLeastWeight);
  if (!is_first) {
    const auto correction = window.divisor * unit;
    for (const auto& model : window.models) {
      if (const auto alive = model.lock()) {
        alive->engine->scale_gradients(alive->model.parameters, correction);
      }
    }
  }
  return loss * (count * unit).to(loss.scalar_type());
}

void Accumulation::note_backwards(int64_t count, bool ends) {
  current_->num_backwards = ends ? 0 : current_->num_backwards + count;
}

int64_t Accumulation::num_unfinished(
    const StepReductions::Engines& engines) const {
  const auto is_among = [&](const std::weak_ptr<ModelContext>& model) {
    const auto alive = model.lock();
    return alive && std::find(engines.begin(), engines.end(), alive->engine) !=
                        engines.end();
  };
  int64_t count = 0;
  for (const auto& [key, window] : windows_) {
    const auto& models = window.models;
    if (models.empty() || std::any_of(models.begin(), models.end(), is_among)) {
      count += window.num_begun;
    }
  }
  return count;
}

StateDict Accumulation::state_dict() const {
  StateDict state;
  int64_t num_windows = 0;
  for (const auto& [key, window] : windows_) {
    if (window.num_begun > 0 || window.num_backwards > 0) {
      StateDict own;
      save(window, own);
      state.set(str_cat("window.", num_windows++), own);
    }
  }
  const auto num_unused = step_state_->counts().num_backwards;
  if (num_windows == 0 && num_unused > 0) {
    Window by_hand;
    for (const auto& [name, object] : registry_->objects()) {
      if (auto model = std::dynamic_pointer_cast<ModelContext>(object)) {
        by_hand.models.push_back(std::move(model));
      }
    }
    StateDict own;
    save(by_hand, own);
    state.set(str_cat("window.", num_windows++), own);
    state.set("num_unused", num_unused);
  }
  state.set("num_windows", num_windows);
  return state;
}

void Accumulation::save(const Window& window, StateDict& state) const {
  state.set("num_begun", window.num_begun);
  state.set("num_backwards", window.num_backwards);
  state.set("is_weighted", window.is_weighted);
  if (window.is_weighted && window.total.defined()) {
    state.set("total", window.total);
    state.set("divisor", window.divisor);
  }
  int64_t num_models = 0;
  for (const auto& weak : window.models) {
    const auto model = weak.lock();
    if (!model) {
      continue;
    }
    const auto prefix = str_cat("model.", num_models++);
    state.set(str_cat(prefix, ".name"), registry_->name_of(*model));
    for (size_t i = 0; i < model->model.names.size(); ++i) {
      const auto gradient =
          model->engine->saved_gradient(model->model.parameters[i]);
      const auto* whole = std::get_if<at::Tensor>(&gradient);
      if (whole == nullptr || whole->defined()) {
        state.set(
            str_cat(prefix, ".gradient.", model->model.names[i]), gradient);
      }
    }
  }
  state.set("num_models", num_models);
}

StateDict Accumulation::nothing() {
  StateDict state;
  state.set("num_windows", int64_t{0});
  return state;
}

void Accumulation::drop_everything() {
  for (const auto& [name, object] : registry_->objects()) {
    if (const auto model = std::dynamic_pointer_cast<ModelContext>(object)) {
      for (const auto& parameter : model->model.parameters) {
        model->engine->load_gradient(parameter, at::Tensor());
      }
    }
  }
  const bool is_in_micro_batch =
      std::any_of(windows_.begin(), windows_.end(), [](const auto& entry) {
        return !entry.second.guard.expired();
      });
  if (!is_in_micro_batch) {
    step_state_->set_sync_gradients(true);
  }
  step_state_->end_step();
  step_state_->forget_shared();
  windows_.clear();
  current_ = &windows_[{}];
}

void Accumulation::load_state_dict(const StateDict& state) {
  drop_everything();
  const auto num_windows = state.get<int64_t>("num_windows");
  for (int64_t i = 0; i < num_windows; ++i) {
    load_window(state.part(str_cat("window.", i)));
  }
  if (state.contains("num_unused")) {
    const auto num_unused = state.get<int64_t>("num_unused");
    step_state_->set_counts({num_unused, num_unused});
  }
}

void Accumulation::load_window(const StateDict& state) {
  Models models;
  const auto num_models = state.get<int64_t>("num_models");
  for (int64_t i = 0; i < num_models; ++i) {
    const auto own = state.part(str_cat("model.", i));
    const auto& name = own.get<std::string>("name");
    std::shared_ptr<ModelContext> model;
    for (const auto& [known, object] : registry_->objects()) {
      if (known == name) {
        model = std::dynamic_pointer_cast<ModelContext>(object);
      }
    }
    if (!model) {
      throw UsageError(str_cat(
          "[load_state_dict] The state contains accumulated gradients of '",
          name,
          "', which was not prepared. Prepare the same models before "
          "loading"));
    }
    std::map<std::string, StateValue> gradients;
    for (const auto& [key, value] : own.part("gradient")) {
      gradients.emplace(key, value);
    }
    for (size_t j = 0; j < model->model.names.size(); ++j) {
      const auto found = gradients.find(model->model.names[j]);
      model->engine->load_gradient(
          model->model.parameters[j],
          found != gradients.end() ? found->second : at::Tensor());
    }
    models.push_back(std::move(model));
  }
  Window& window = windows_[key_of(models)];
  window.models.assign(models.begin(), models.end());
  window.num_begun = state.get<int64_t>("num_begun");
  window.num_backwards = state.get<int64_t>("num_backwards");
  window.is_weighted = state.get<bool>("is_weighted");
  if (state.contains("total")) {
    window.total = state.get<at::Tensor>("total").clone();
    window.divisor = state.get<at::Tensor>("divisor").clone();
  }
}

std::optional<StateDict> Accumulation::joined(
    const std::vector<StateDict>& of_ranks,
    int num_ranks) {
  std::vector<std::map<std::string, StateDict>> by_models;
  for (const auto& state : of_ranks) {
    auto& windows = by_models.emplace_back();
    // Ranks may have them in another order.
    for (int64_t i = 0; i < state.get<int64_t>("num_windows"); ++i) {
      auto window = state.part(str_cat("window.", i));
      auto models = names_in(window);
      windows.emplace(std::move(models), std::move(window));
    }
    if (windows.size() != by_models.front().size()) {
      return std::nullopt;
    }
  }
  if (by_models.empty()) {
    return std::nullopt;
  }
  StateDict all;
  int64_t num_windows = 0;
  for (const auto& [models, first] : by_models.front()) {
    std::vector<const StateDict*> same;
    for (const auto& windows : by_models) {
      const auto found = windows.find(models);
      if (found == windows.end()) {
        return std::nullopt;
      }
      same.push_back(&found->second);
    }
    all.set(str_cat("window.", num_windows++), joined_window(same, num_ranks));
  }
  all.set("num_windows", num_windows);
  if (of_ranks.front().contains("num_unused")) {
    all.set("num_unused", of_ranks.front().get<int64_t>("num_unused"));
  }
  return all;
}

} // namespace accelerate
