// SPDX-License-Identifier: Apache-2.0
#include "training/run/recorded_steps.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "training/comm/agreement.h"
#include "training/comm/process_group_impl.h"
#include "training/device/device_graph.h"
#include "training/device/streams.h"
#include "training/verification/step_recorder.h"

namespace accelerate {
namespace {

void set_shares_buffers(
    const std::vector<std::pair<std::weak_ptr<ModelContext>, bool>>& shares) {
  for (const auto& [model, next] : shares) {
    if (const auto alive = model.lock()) {
      alive->engine->set_shares_buffers_next(next);
    }
  }
}

std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares_buffers(
    const RunContext& context) {
  std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares;
  for (const auto& model : context.living_models()) {
    shares.emplace_back(model, model->engine->shares_buffers_next());
  }
  return shares;
}

/// The collectives since its construction, which are being recorded. They count
/// only when they are replayed.
class RecordedCollectives {
 public:
  explicit RecordedCollectives(const ProcessGroup& group) : group_(group) {
    if (const auto carrier = to_c10d(group)) {
      replayed_ = uncounted_collectives(carrier);
      first_ = group.impl()->last_number();
    }
  }

  /// Returns how many there were.
  int64_t uncount() const {
    if (!replayed_) {
      return 0;
    }
    const auto number =
        static_cast<int64_t>(group_.impl()->last_number() - first_);
    *replayed_ -= number;
    return number;
  }

 private:
  const ProcessGroup& group_;
  std::shared_ptr<std::atomic<int64_t>> replayed_;
  uint64_t first_ = 0;
};

/// What a recording changes on the host, as it was before.
struct HostSnapshot {
  explicit HostSnapshot(const RunContext& context)
      : context(context),
        buffers(shares_buffers(context)),
        counts(context.step_state->counts()),
        update_counts(context.step_state->update_counts()),
        num_backwards(context.progress->num_backwards),
        optimizers(context.living_optimizers()) {
    for (const auto& model : context.living_models()) {
      for (const auto& parameter : model->model.parameters) {
        const auto trained = model->engine->trained(parameter);
        gradients.emplace_back(parameter, parameter.grad());
        gradients.emplace_back(trained, trained.grad());
      }
    }
    for (const auto& optimizer : optimizers) {
      num_calls.push_back(optimizer->num_calls());
    }
  }

  /// Undoes a recording that failed.
  void restore() const {
    set_shares_buffers(buffers);
    context.step_state->set_counts(counts);
    context.step_state->set_update_counts(update_counts);
    context.accumulation->note_backwards(
        num_backwards - context.progress->num_backwards,
        context.step_state->sync_gradients());
    context.progress->num_backwards = num_backwards;
    for (const auto& [tensor, gradient] : gradients) {
      tensor.mutable_grad() = gradient;
    }
    for (const auto& model : context.living_models()) {
      model->engine->scale_kept_gradients({});
    }
    for (const auto& optimizer : optimizers) {
      optimizer->set_done(false);
      if (context.scaler) {
        context.scaler->forget(optimizer.get());
      }
    }
  }

  const RunContext& context;
  /// The gradients of parameters and of the tensors that are trained instead.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
  std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> buffers;
  StepState::Counts counts;
  StepState::UpdateCounts update_counts;
  int64_t num_backwards;
  std::vector<std::shared_ptr<OptimizerStep>> optimizers;
  std::vector<int64_t> num_calls;
};

} // namespace

std::string RecordedSteps::why_not_to_capture(
    const std::vector<at::Tensor>& inputs) {
  if (StepRecorder::get() != nullptr) {
    return "accelerate verify reads the results of each step on the host";
  }
  if (!has_device_graphs(context_.device())) {
    return str_cat(context_.device(), " has no device graphs. Use a GPU");
  }
  if (auto why = context_.assembly.engines.why_not_to_capture(); !why.empty()) {
    return why;
  }
  if (const auto carrier = to_c10d(context_.group())) {
    const auto name =
        carrier->getBackend(context_.device().type())->getBackendName();
    if (name != "nccl") {
      return str_cat(
          "the backend ",
          name,
          " needs the host to synchronise gradients. Use NCCL");
    }
    if (context_.group().world_size() > 1 &&
        !context_.group().impl()->hosts_communicate()) {
      return "the process group has no CPU backend. Create it with "
             "cpu:gloo,cuda:nccl";
    }
    if (context_.debug()) {
      return "debug mode compares collectives on the host. Turn it off";
    }
  }
  for (const auto& model : context_.living_models()) {
    if (auto why = model->engine->why_not_to_record(); !why.empty()) {
      return why;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && (inputs[i].device() != context_.device() ||
                                inputs[i].requires_grad())) {
      return str_cat(
          "input ",
          i,
          inputs[i].requires_grad()
              ? std::string(" requires a gradient. Pass a detached tensor")
              : str_cat(
                    " is on ",
                    inputs[i].device(),
                    ". Move it to ",
                    context_.device()));
    }
  }
  for (const auto& optimizer : context_.living_optimizers()) {
    if (auto why = optimizer->optimizer().prepare_capture(); !why.empty()) {
      return why;
    }
    if (context_.scaler && !optimizer->optimizer().takes_scalars()) {
      return str_cat(
          "with fp16, this optimizer needs the host to skip steps. Use ",
          hint(
              "AdamW, Adam or SGD from accelerate::optim",
              "an optimizer with fused=True"));
    }
  }
  // The replays of one accumulation add to the same memory.
  context_.step_state->set_keeps_gradients(
      context_.accumulation->num_steps() > 1);
  return {};
}

std::unique_ptr<StreamScope> RecordedSteps::enter_captured_step() {
  if (context_.group().is_solo()) {
    return nullptr;
  }
  auto scope =
      std::make_unique<StreamScope>(StreamRole::kRecording, context_.device());
  for (const auto& model : context_.living_models()) {
    model->engine->prepare_recording();
  }
  return scope;
}

std::string RecordedSteps::capture_key() const {
  std::string key =
      context_.step_state->sync_gradients() ? " updates" : " adds";
  for (const auto& model : context_.living_models()) {
    key += model->engine->sync() ? " synchronises" : " accumulates";
    key += model->engine->shares_buffers_next() ? " shares" : "";
  }
  return key;
}

bool RecordedSteps::is_recordable() const {
  const auto models = context_.living_models();
  return std::all_of(models.begin(), models.end(), [](const auto& model) {
    return model->engine->is_recordable();
  });
}

StepRecording RecordedSteps::record(const std::function<void()>& work) {
  write_learning_rates();
  context_.update_scale();
  for (const auto& model : context_.living_models()) {
    for (const auto& parameter : model->model.parameters) {
      // Applies pending factors, because if the recording fails, the factor
      // that it computes is NaN.
      model->engine->gradient(parameter);
    }
  }
  std::optional<DeferredComparisons> comparisons;
  if (to_c10d(context_.group())) {
    comparisons.emplace(context_.group());
  }
  const RecordedCollectives collectives(context_.group());
  const HostSnapshot before(context_);
  for (const auto& optimizer : before.optimizers) {
    optimizer->set_done(false);
  }
  context_.step_state->set_captured(true);
  try {
    work();
  } catch (...) {
    collectives.uncount();
    context_.step_state->set_captured(false);
    before.restore();
    throw;
  }
  context_.step_state->set_captured(false);
  const int64_t num_collectives = collectives.uncount();
  const auto now = context_.step_state->counts();
  // These counts are added at each replay.
  auto in_step = context_.step_state->update_counts();
  in_step -= before.update_counts;
  context_.step_state->set_update_counts(before.update_counts);
  StepRecording recording{
      {now.num_forwards - before.counts.num_forwards,
       now.num_backwards - before.counts.num_backwards},
      context_.progress->num_backwards - before.num_backwards,
      in_step,
      context_.sends_gradients()};
  for (size_t i = 0; i < before.optimizers.size(); ++i) {
    const auto& optimizer = before.optimizers[i];
    if (optimizer->num_calls() != before.num_calls[i]) {
      recording.optimizers.push_back(
          {optimizer, optimizer->is_done(), optimizer->overflow()});
    }
  }
  if (comparisons) {
    recording.comparisons = comparisons->take();
  }
  recording.num_collectives = num_collectives;
  recording.shares_buffers = shares_buffers(context_);
  return recording;
}

void RecordedSteps::end_recorded_step() {
  const auto optimizers = context_.living_optimizers();
  const auto steps = [](const auto& optimizer) { return optimizer->is_done(); };
  const auto waits = [](const auto& optimizer) {
    return !optimizer->is_done() && optimizer->holds_scaled_gradients();
  };
  if (std::any_of(optimizers.begin(), optimizers.end(), steps) &&
      std::any_of(optimizers.begin(), optimizers.end(), waits)) {
    throw UsageError(
        "[capture] With fp16, the captured function must step all optimizers "
        "or none. Move the missing step() into it");
  }
  context_.update_scale();
}

void RecordedSteps::repeat(const StepRecording& recording) {
  report_.note_step();
  context_.update_scale();
  const auto counts = context_.step_state->counts();
  context_.step_state->set_counts(
      {counts.num_forwards + recording.counts.num_forwards,
       counts.num_backwards + recording.counts.num_backwards});
  context_.step_state->note_replayed_backwards(recording.num_backwards);
  context_.accumulation->note_backwards(
      recording.num_backwards, context_.step_state->sync_gradients());
  context_.progress->num_backwards += recording.num_backwards;
}

void RecordedSteps::begin_replay(const StepRecording& recording) {
  repeat_comparisons(context_.group(), recording.comparisons);
  if (const auto carrier = to_c10d(context_.group())) {
    *uncounted_collectives(carrier) += recording.num_collectives;
  }
}

void RecordedSteps::end_replay(const StepRecording& recording) {
  set_shares_buffers(recording.shares_buffers);
  if (recording.num_backwards > 0) {
    context_.step_state->set_synchronised(recording.is_synchronised);
  }
  auto update_counts = context_.step_state->update_counts();
  context_.step_state->set_update_counts(
      update_counts += recording.update_counts);
  for (const auto& [optimizer, is_done, overflow] : recording.optimizers) {
    if (const auto alive = optimizer.lock()) {
      // Clone it, because other graphs may overwrite the flag.
      alive->set_done(
          is_done, overflow.defined() ? overflow.clone() : overflow);
    }
  }
}

void RecordedSteps::write_learning_rates() {
  for (const auto& optimizer : context_.living_optimizers()) {
    optimizer->write_learning_rates(context_.device());
  }
}

size_t RecordedSteps::address_hash() const {
  size_t hash = 0;
  const auto mix = [&](size_t value) {
    hash = hash * 0x9e3779b97f4a7c15u + value;
  };
  for (const auto& model : context_.living_models()) {
    for (const auto& parameter : model->model.parameters) {
      mix(reinterpret_cast<size_t>(parameter.const_data_ptr()));
    }
    mix(model->engine->num_layouts());
  }
  for (const auto& optimizer : context_.living_optimizers()) {
    mix(static_cast<size_t>(optimizer->num_loads()));
  }
  return hash;
}

} // namespace accelerate
