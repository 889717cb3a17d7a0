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

std::string names_in(const StateDict& saved) {
  std::string names;
  for (int64_t i = 0; i < saved.get<int64_t>("num_models"); ++i) {
    names += saved.get<std::string>(str_cat("model.", i, ".name")) + ' ';
  }
  return names;
}

at::Tensor mean_of(
    const std::vector<const StateDict*>& all_saved,
    const std::string& name) {
  at::Tensor sum;
  for (const auto* saved : all_saved) {
    if (saved->contains(name)) {
      const auto& value = saved->get<at::Tensor>(name);
      sum = sum.defined() ? sum + value : value;
    }
  }
  return sum / static_cast<double>(all_saved.size());
}

/// Joins the accumulations of one set of models over all ranks.
StateDict joined_accumulation(
    const std::vector<const StateDict*>& all_saved,
    int num_ranks) {
  StateDict joined = *all_saved.front();
  const bool is_weighted = joined.contains("divisor");
  // Plain gradients are finally averaged over ranks, so their number does not
  // matter. Weighted gradients are sums over samples, so the sum over the new
  // ranks must equal the sum over the old ones.
  std::vector<StateDict> sums;
  for (const auto* saved : all_saved) {
    auto& sum = sums.emplace_back(*saved);
    for (const auto& [name, value] : *saved) {
      const auto* gradient = std::get_if<at::Tensor>(&value);
      if (is_weighted && gradient != nullptr && name != "total" &&
          name != "divisor") {
        const auto& divisor = saved->get<at::Tensor>("divisor");
        sum.set(name, *gradient * divisor.to(gradient->scalar_type()));
      }
    }
  }
  std::vector<const StateDict*> summed;
  for (const auto& sum : sums) {
    summed.push_back(&sum);
  }
  const double share =
      is_weighted ? static_cast<double>(all_saved.size()) / num_ranks : 1.0;
  for (const auto& [name, value] : sums.front()) {
    if (!std::holds_alternative<at::Tensor>(value)) {
      continue;
    }
    auto mean = mean_of(summed, name);
    if (name != "divisor") {
      mean = mean * share;
    }
    if (is_weighted && name != "divisor" && name != "total") {
      mean = mean / mean_of(summed, "divisor").to(mean.scalar_type());
    }
    joined.set(name, mean);
  }
  return joined;
}

// Sums beyond this limit, and gradients divided by them, leave the range of the
// gradients' dtype.
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
        count.defined() ? str_cat(
                              "a tensor of type ",
                              count.toString(),
                              " with ",
                              count.numel(),
                              " elements")
                        : "an undefined tensor",
        ". Pass a number, or a dense tensor with one real element"));
  }
  count_ = count.detach().reshape({}).to(at::kDouble);
  // Reading a weight on a device would wait for it.
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
      current_(&pending_[{}]) {
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

void Accumulation::drop_dead_accumulations() {
  std::erase_if(pending_, [](const auto& entry) {
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
  drop_dead_accumulations();
  Pending& pending = pending_[key_of(models)];
  if (!pending.guard.expired()) {
    // The guard may hold back gradients that this micro-batch must send.
    throw UsageError(
        "[accumulate] The guard of the previous micro-batch still exists. "
        "Destroy it before the next accumulate(), for example by creating it "
        "in its own block");
  }
  pending.guard = guard.life();
  current_ = &pending;
  pending.models.assign(models.begin(), models.end());
  ++pending.num_begun;
  const auto batch = step_state.batch();
  const bool is_last = sync_with_dataloader_ && batch && batch->is_last;
  const bool sync = is_last || pending.num_begun >= num_steps_;
  if (sync) {
    pending.num_begun = 0;
  }
  step_state.set_sync_gradients(sync);
  // Without accumulation, a rank may skip a batch without harm.
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
  Pending& pending = *current_;
  const bool is_first = pending.num_backwards == 0;
  if (!is_first && weight.has_value() != pending.is_weighted) {
    throw UsageError(
        "[backward] Only some micro-batches of this accumulation have a "
        "weight. Pass a weight for all of them, or for none");
  }
  pending.is_weighted = weight.has_value();
  const bool ends = step_state.sync_gradients();
  pending.num_backwards = ends ? 0 : pending.num_backwards + 1;
  if (!weight) {
    return num_steps_ == 1 ? loss : loss / static_cast<double>(num_steps_);
  }
  const auto count = weight->count().to(loss.device());
  pending.total = is_first ? count.clone() : pending.total + count;
  if (!ends) {
    if (is_first) {
      // The divisor gives roughly the right scale, so that fp16 gradients keep
      // their range. If gradients are synchronised before the sum is known, it
      // must be the same on all ranks.
      pending.divisor = sync_each_batch_ ? at::ones_like(count)
                                         : at::clamp_min(count, 1.0) *
                                               static_cast<double>(num_steps_);
    }
    return loss * (count / pending.divisor).to(loss.scalar_type());
  }
  if (!is_alone && !reductions.is_joining()) {
    // Detects ranks without a weight. They would send gradients while these
    // ranks send weights.
    announce(reductions.group(), kWeightedBackward);
  }
  // Gradients are averaged over ranks, so undo that division.
  const int64_t divisor =
      is_alone ? 1 : reductions.reduce(pending.total, ReduceOp::kSum);
  const auto unit = divisor / at::clamp_min(pending.total, kLeastWeight);
  if (!is_first) {
    const auto correction = pending.divisor * unit;
    for (const auto& model : pending.models) {
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
  for (const auto& [key, pending] : pending_) {
    const auto& models = pending.models;
    if (models.empty() || std::any_of(models.begin(), models.end(), is_among)) {
      count += pending.num_begun;
    }
  }
  return count;
}

StateDict Accumulation::state_dict() const {
  StateDict state;
  int64_t num_saved = 0;
  for (const auto& [key, pending] : pending_) {
    if (pending.num_begun > 0 || pending.num_backwards > 0) {
      StateDict own;
      save(pending, own);
      state.set(str_cat("window.", num_saved++), own);
    }
  }
  const auto num_unused = step_state_->counts().num_backwards;
  if (num_saved == 0 && num_unused > 0) {
    Pending by_hand;
    for (const auto& [name, object] : registry_->objects()) {
      if (auto model = std::dynamic_pointer_cast<ModelContext>(object)) {
        by_hand.models.push_back(std::move(model));
      }
    }
    StateDict own;
    save(by_hand, own);
    state.set(str_cat("window.", num_saved++), own);
    state.set("num_unused", num_unused);
  }
  state.set("num_windows", num_saved);
  return state;
}

void Accumulation::save(const Pending& pending, StateDict& state) const {
  state.set("num_begun", pending.num_begun);
  state.set("num_backwards", pending.num_backwards);
  state.set("is_weighted", pending.is_weighted);
  if (pending.is_weighted && pending.total.defined()) {
    state.set("total", pending.total);
    state.set("divisor", pending.divisor);
  }
  int64_t num_models = 0;
  for (const auto& weak : pending.models) {
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
      std::any_of(pending_.begin(), pending_.end(), [](const auto& entry) {
        return !entry.second.guard.expired();
      });
  if (!is_in_micro_batch) {
    step_state_->set_sync_gradients(true);
  }
  step_state_->end_step();
  step_state_->reset_update_counts();
  pending_.clear();
  current_ = &pending_[{}];
}

void Accumulation::load_state_dict(const StateDict& state) {
  drop_everything();
  const auto num_saved = state.get<int64_t>("num_windows");
  for (int64_t i = 0; i < num_saved; ++i) {
    load_accumulation(state.section(str_cat("window.", i)));
  }
  if (state.contains("num_unused")) {
    const auto num_unused = state.get<int64_t>("num_unused");
    step_state_->set_counts({num_unused, num_unused});
  }
}

void Accumulation::load_accumulation(const StateDict& state) {
  Models models;
  const auto num_models = state.get<int64_t>("num_models");
  for (int64_t i = 0; i < num_models; ++i) {
    const auto own = state.section(str_cat("model.", i));
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
    for (const auto& [key, value] : own.section("gradient")) {
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
  Pending& pending = pending_[key_of(models)];
  pending.models.assign(models.begin(), models.end());
  pending.num_begun = state.get<int64_t>("num_begun");
  pending.num_backwards = state.get<int64_t>("num_backwards");
  pending.is_weighted = state.get<bool>("is_weighted");
  if (state.contains("total")) {
    pending.total = state.get<at::Tensor>("total").clone();
    pending.divisor = state.get<at::Tensor>("divisor").clone();
  }
}

std::optional<StateDict> Accumulation::joined(
    const std::vector<StateDict>& of_ranks,
    int num_ranks) {
  std::vector<std::map<std::string, StateDict>> by_models;
  for (const auto& state : of_ranks) {
    auto& saved_of_rank = by_models.emplace_back();
    // Other ranks may have the accumulations in another order.
    for (int64_t i = 0; i < state.get<int64_t>("num_windows"); ++i) {
      auto saved = state.section(str_cat("window.", i));
      auto models = names_in(saved);
      saved_of_rank.emplace(std::move(models), std::move(saved));
    }
    if (saved_of_rank.size() != by_models.front().size()) {
      return std::nullopt;
    }
  }
  if (by_models.empty()) {
    return std::nullopt;
  }
  StateDict all;
  int64_t num_saved = 0;
  for (const auto& [models, first] : by_models.front()) {
    std::vector<const StateDict*> same;
    for (const auto& saved_of_rank : by_models) {
      const auto found = saved_of_rank.find(models);
      if (found == saved_of_rank.end()) {
        return std::nullopt;
      }
      same.push_back(&found->second);
    }
    all.set(
        str_cat("window.", num_saved++), joined_accumulation(same, num_ranks));
  }
  all.set("num_windows", num_saved);
  if (of_ranks.front().contains("num_unused")) {
    all.set("num_unused", of_ranks.front().get<int64_t>("num_unused"));
  }
  return all;
}

} // namespace accelerate
