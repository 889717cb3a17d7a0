// SPDX-License-Identifier: Apache-2.0
#include "training/run/training_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "core/observe/rank_record.h"
#include "core/process/stop_request.h"
#include "training/comm/agreement.h"
#include "training/comm/hang_exchange.h"
#include "training/comm/process_group_impl.h"
#include "training/parallel/engine_scope.h"
#include "training/parallel/recorded_range.h"
#include "training/random/generators.h"
#include "training/run/device_marks.h"
#include "training/run/step_notes.h"

namespace accelerate {
namespace {

/// With `debug`, weights are compared once in this many backwards.
constexpr int64_t kChecksEvery = 100;

// Throws on fp16 parameters with fp16, because their gradients could not be
// unscaled without loss.
void check_precision(const ParameterSet& model, Precision precision) {
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const auto& parameter = model.parameters[i];
    if (precision == Precision::kFp16 && parameter.requires_grad() &&
        parameter.scalar_type() == at::kHalf) {
      throw UsageError(str_cat(
          "[prepare] '",
          model.names[i],
          "' is fp16, but mixed precision fp16 needs fp32 parameters. Convert "
          "the model with float() first"));
    }
  }
}

/// Makes all ranks use `root`'s loss scale. With different scales, gradients
/// would be averaged incorrectly.
void share_scale(
    GradScaler& scaler,
    const ProcessGroup& group,
    c10::Device device,
    int root) {
  auto state = scaler.state_dict();
  auto numbers = at::tensor(
      {state.get<double>("scale"),
       static_cast<double>(state.get<int64_t>("_growth_tracker"))},
      at::TensorOptions(device).dtype(at::kDouble));
  group.broadcast(numbers, root);
  const auto shared = numbers.cpu();
  state.set("scale", shared[0].item<double>());
  state.set("_growth_tracker", shared[1].item<int64_t>());
  scaler.load_state_dict(state);
}

/// The state of torch's default generator of a device.
class GeneratorState final : public Stateful {
 public:
  explicit GeneratorState(c10::Device device) : device_(device) {}
  StateDict state_dict() const override {
    StateDict state;
    state.set("state", generator_state(default_generator(device_)));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    set_generator_state(
        default_generator(device_), state.get<at::Tensor>("state"));
  }

 private:
  c10::Device device_;
};

/// The engine of the model that `tensor` belongs to, or is trained for; null if
/// there is no such model.
const ParallelEngine* engine_of(
    const at::Tensor& tensor,
    const std::vector<std::shared_ptr<ModelContext>>& models) {
  for (const auto& model : models) {
    if (model->index_of.contains(tensor.unsafeGetTensorImpl())) {
      return model->engine.get();
    }
  }
  return nullptr;
}

using Optimizers = std::vector<std::shared_ptr<OptimizerStep>>;

StepNotes step_notes(
    const StepState& step_state,
    const Optimizers& optimizers,
    int64_t inputs,
    int64_t missed_updates) {
  StepNotes notes{
      .inputs = inputs,
      .update_counts = step_state.update_counts(),
      .missed_updates = missed_updates};
  for (const auto& optimizer : optimizers) {
    if (const auto index = optimizer->index()) {
      notes.learning_rates[*index] +=
          optimizer->optimizer().sum_of_learning_rates();
      notes.holds_synchronised |= int64_t{optimizer->holds_synchronised()}
                                  << *index;
    }
  }
  if (step_state.has_replayed()) {
    notes.holds_synchronised = StepNotes::kUnknown;
  }
  return notes;
}

OptimizerNumbers optimizer_numbers(const Optimizers& optimizers) {
  OptimizerNumbers numbers;
  for (const auto& optimizer : optimizers) {
    ++numbers.count;
    if (const auto index = optimizer->index()) {
      numbers.of_index[*index] = numbers.count;
    }
  }
  return numbers;
}

} // namespace

TrainingRun::TrainingRun(
    AcceleratorOptions options,
    const EnvLookup& env,
    std::shared_ptr<StepState> step_state)
    : context_(std::move(options), env, std::move(step_state)),
      checkpoints_(context_),
      report_(context_),
      recorded_steps_(context_, report_),
      batch_rows_(mesh().group(MeshDimension::kData), context_.step_state),
      checks_(context_),
      input_watch_(std::make_shared<InputWatch>(
          mesh().size(MeshDimension::kData) == 1)) {
  context_.state->add("progress", context_.progress);
  context_.state->add(
      kAccumulation, context_.accumulation, StateScope::kPerRank);
  context_.reductions->set_unfinished(
      [accumulation =
           context_.accumulation](const StepReductions::Engines& engines) {
        return accumulation->num_unfinished(engines);
      });
  // Discard counts of an earlier run that has failed.
  context_.step_state->reset_update_counts();
  context_.reductions->set_updates(
      [state = context_.step_state] {
        const auto& updates = state->update_counts().updates;
        return std::accumulate(updates.begin(), updates.end(), int64_t{0});
      },
      [state = context_.step_state] { state->reset_update_counts(); });
  if (context_.scaler) {
    context_.state->add("scaler", context_.scaler);
    context_.reductions->set_share(
        [scaler = context_.scaler, group = group(), device = device()](
            int root) { share_scale(*scaler, group, device, root); });
  }
  RankRecord::of_this_thread().follow(
      device().is_cpu()
          ? std::function<std::unique_ptr<DeviceMarks>()>()
          : [device = device()] { return make_device_marks(device); });
  const auto add_generator = [&](const char* name, c10::Device device) {
    generators_.push_back(std::make_shared<GeneratorState>(device));
    context_.state->add(name, generators_.back(), StateScope::kPerRank);
  };
  if (auto* recorder = StepRecorder::get()) {
    verified_ =
        std::make_shared<VerifiedSteps>(context_, checkpoints_, *recorder);
  }
  add_generator("generator_cpu", c10::Device(c10::kCPU));
  if (!device().is_cpu()) {
    add_generator("generator_device", device());
  }
}

TrainingRun::~TrainingRun() {
  for (const auto& model : context_.living_models()) {
    // A model may outlive its run.
    model->renew = nullptr;
    model->verified = nullptr;
  }
  for (const auto& optimizer : context_.living_optimizers()) {
    optimizer->on_new_groups({});
    optimizer->observe_updates(nullptr);
  }
  report_.say_step_times();
  report_.end_journal();
}

DistributedType TrainingRun::distributed_type() const {
  return distributed_type_of(group(), device());
}

std::shared_ptr<ModelContext> TrainingRun::prepare_model(
    ParameterSet model,
    std::string type,
    bool evaluation_mode) {
  auto context = std::make_shared<ModelContext>();
  context->model = std::move(model);
  context->type = std::move(type);
  context->reductions = context_.reductions;
  context->inputs = input_watch_;
  if (evaluation_mode) {
    put_engine(context, EnginePlan());
  } else {
    check_precision(context->model, precision());
    put_engine(context, context_.assembly.engines);
    allow_new_engine(context);
  }
  context->step_state = context_.step_state;
  context->device = device().type();
  context->precision = precision();
  context->is_for_evaluation = evaluation_mode;
  context->outputs_to_fp32 = context_.options.outputs_to_fp32;
  context->verified = verified_;
  has_models_ = has_models_ || !evaluation_mode;
  std::erase_if(
      context_.models, [](const auto& entry) { return entry.expired(); });
  context_.models.push_back(context);
  context_.state->add("model", context);
  context_.state->add("engine", context->engine, StateScope::kPerRank);
  return context;
}

bool TrainingRun::shards_parameters() const {
  return context_.assembly.engines.shards_parameters();
}

void TrainingRun::put_engine(
    const std::shared_ptr<ModelContext>& model,
    const EnginePlan& plan) {
  model->engine = plan.make(
      {.group = mesh().group(MeshDimension::kData),
       .model = model->model,
       .memory = context_.options.memory,
       .mesh = mesh(),
       .device = device()});
  model->weights = plan.weights();
  model->as_prepared = ParameterSnapshot(model->model);
  for (size_t i = 0; i < model->model.parameters.size(); ++i) {
    const auto& parameter = model->model.parameters[i];
    const auto& trained = model->engine->trained(parameter);
    model->index_of[parameter.unsafeGetTensorImpl()] = i;
    model->index_of[trained.unsafeGetTensorImpl()] = i;
  }
  std::erase_if(context_.models_with_callbacks, [&](const auto& entry) {
    return entry.expired() || entry.lock() == model;
  });
  if (!model->engine->is_local()) {
    context_.models_with_callbacks.push_back(model);
  }
}

void TrainingRun::train_evaluated(const std::shared_ptr<ModelContext>& model) {
  check_precision(model->model, precision());
  put_engine(model, context_.assembly.engines);
  model->is_for_evaluation = false;
  has_models_ = true;
  context_.state->add("engine", model->engine, StateScope::kPerRank);
  allow_new_engine(model);
}

void TrainingRun::allow_new_engine(const std::shared_ptr<ModelContext>& model) {
  model->renew = [this, weak = std::weak_ptr(model)] {
    const auto context = weak.lock();
    check_precision(context->model, precision());
    put_engine(context, context_.assembly.engines);
    context_.state->add("engine", context->engine, StateScope::kPerRank);
    wire();
  };
}

std::shared_ptr<OptimizerStep> TrainingRun::prepare_optimizer(
    std::unique_ptr<OptimizerAdapter> optimizer) {
  std::erase_if(
      context_.optimizers, [](const auto& entry) { return entry.expired(); });
  auto step = std::make_shared<OptimizerStep>(
      std::move(optimizer),
      context_.step_state,
      context_.scaler,
      context_.state);
  step->on_new_groups([this] { wire(); });
  step->observe_updates(verified_);
  context_.optimizers.push_back(step);
  context_.state->add("optimizer", step);
  return step;
}

void TrainingRun::wire() {
  for (const auto& model : context_.living_models()) {
    const std::string name = context_.state->name_of(*model);
    NamedParameters parameters;
    for (size_t i = 0; i < model->model.names.size(); ++i) {
      // Names of the first model are unchanged. Names of other models get the
      // model as a prefix.
      const auto& own = model->model.names[i];
      parameters.emplace_back(
          name == "model" ? own : str_cat(name, '.', own),
          model->model.parameters[i]);
    }
    for (const auto& optimizer : context_.living_optimizers()) {
      try {
        optimizer->wire(model->engine, parameters);
      } catch (...) {
        // Drop the optimizer, so that preparing other models does not fail,
        // too.
        std::erase_if(context_.optimizers, [&](const auto& entry) {
          return entry.lock() == optimizer;
        });
        throw;
      }
    }
  }
}

void TrainingRun::backward(
    const at::Tensor& loss,
    const BackwardOptions& options,
    const RunAutograd& run) {
  report_.note_step();
  const bool is_alone = mesh().size(MeshDimension::kData) == 1;
  if (is_alone && has_models_ && !checks_.complains() &&
      !context_.step_state->has_forward()) {
    throw UsageError(
        "[backward] No prepared model has been called since the last step, so "
        "the gradients of this loss would not be synchronised if there were "
        "several processes. Call the model returned by prepare()");
  }
  const auto trains_alone = [&] {
    const auto models = context_.living_models();
    return !models.empty() &&
           std::all_of(models.begin(), models.end(), [](const auto& model) {
             return model->engine->is_alone();
           });
  };
  // Count backwards that fail, too, on all ranks: some ranks detect a mismatch
  // before they compute gradients, and some after.
  const int64_t missed_updates = context_.step_state->num_missed_updates();
  context_.step_state->end_due_updates();
  at::Tensor weighted = context_.accumulation->weigh(
      loss,
      options.weight,
      *context_.step_state,
      *context_.reductions,
      options.weight && trains_alone());
  context_.update_scale();
  if (context_.scaler) {
    weighted = context_.scaler->scale(weighted);
  }
  if (verified_) {
    verified_->before_backward(
        loss, options.weight, /*is_python=*/checks_.complains());
  }
  EngineScope scope(
      context_.models_with_callbacks,
      [](ModelContext& model) -> ParallelEngine& { return *model.engine; },
      &ParallelEngine::before_backward,
      &ParallelEngine::abandon_backward);
  if (options.retain_graph) {
    for (const auto& model : context_.living_models()) {
      model->engine->await_another_backward();
    }
  }
  if (debug() && context_.progress->num_backwards % kChecksEvery == 0 &&
      !context_.reductions->is_joining()) {
    checks_.check_weights();
  }
  const bool synchronises = context_.sends_gradients();
  if (!context_.reductions->is_joining() && synchronises) {
    const auto optimizers = context_.living_optimizers();
    // The comparison runs while autograd computes the first gradients.
    announce(
        group(),
        options.weight ? kWeightedBackward : kPlainBackward,
        step_notes(
            *context_.step_state,
            optimizers,
            input_watch_->take(),
            missed_updates)
            .encode(),
        [watch = input_watch_,
         numbers = optimizer_numbers(optimizers)](const auto& of_ranks) {
          watch->compare(StepNotes::inputs_of(of_ranks));
          check_steps(of_ranks, numbers);
        });
  }
  context_.step_state->set_synchronised(synchronises);
  group().impl()->guard(
      "backward",
      [&] {
        const auto recorded = record_range(kRecordedBackward);
        run(weighted);
      },
      StepPhase::kBackward);
  finish_comparison(group());
  scope.finish([](ParallelEngine& engine) { engine.after_backward(); });
  if (verified_) {
    verified_->after_backward();
  }
  context_.step_state->note_backward();
  ++context_.progress->num_backwards;
  if (!is_alone) {
    checks_.check_arrivals();
  }
  checks_.watch_loss(loss);
  checks_.watch_for_optimizers();
  if (input_watch_->is_shared() && topology().is_main()) {
    checks_.warn(
        "[backward] The inputs of the first 3 steps were the same on all "
        "ranks, so all ranks train on the same data. Pass the data loader to "
        "prepare()");
  }
}

JoinGuard TrainingRun::begin_join(
    std::vector<ParallelEngine*> engines,
    JoinOptions options,
    bool even) const {
  return JoinGuard(context_.reductions, std::move(engines), options, even);
}

AccumulateGuard TrainingRun::begin_micro_batch(
    std::vector<std::shared_ptr<ModelContext>> models) {
  AccumulateGuard guard;
  context_.accumulation->begin(*context_.step_state, std::move(models), guard);
  return guard;
}

void TrainingRun::unscale_gradients() {
  for (const auto& optimizer : context_.living_optimizers()) {
    optimizer->unscale();
  }
}

void TrainingRun::unscale_owners_of(const std::vector<at::Tensor>& parameters) {
  if (!context_.scaler) {
    return;
  }
  const auto models = context_.living_models();
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : parameters) {
    wanted.insert(parameter.unsafeGetTensorImpl());
    if (const auto* engine = engine_of(parameter, models)) {
      wanted.insert(engine->trained(parameter).unsafeGetTensorImpl());
    }
  }
  for (const auto& optimizer : context_.living_optimizers()) {
    const auto own = optimizer->optimizer().parameters();
    if (std::any_of(own.begin(), own.end(), [&](const auto& p) {
          return wanted.contains(p.unsafeGetTensorImpl());
        })) {
      optimizer->unscale();
    }
  }
}

bool TrainingRun::is_trained_with_copies(
    const std::vector<at::Tensor>& parameters,
    const ParallelEngine& engine) const {
  std::unordered_set<const c10::TensorImpl*> trained;
  for (const auto& parameter : parameters) {
    trained.insert(engine.trained(parameter).unsafeGetTensorImpl());
  }
  for (const auto& optimizer : context_.living_optimizers()) {
    const auto own = optimizer->optimizer().parameters();
    if (!optimizer->optimizer().takes_copies() &&
        std::any_of(own.begin(), own.end(), [&](const auto& parameter) {
          return trained.contains(parameter.unsafeGetTensorImpl());
        })) {
      return false;
    }
  }
  return true;
}

std::vector<HeldGradients> TrainingRun::held_gradients(
    const std::vector<at::Tensor>& parameters,
    bool are_multiplied) const {
  const auto models = context_.living_models();
  std::vector<HeldGradients> kept;
  std::unordered_set<const ParallelEngine*> keepers;
  for (size_t i = 0; are_multiplied && i < models.size(); ++i) {
    std::vector<at::Tensor> own;
    for (const auto& parameter : parameters) {
      if (models[i]->index_of.contains(parameter.unsafeGetTensorImpl())) {
        own.push_back(parameter);
      }
    }
    auto* engine = models[i]->engine.get();
    const auto is_divided = [&](const at::Tensor& parameter) {
      return engine->tensor_layout(parameter).divided_along() !=
             MeshDimension();
    };
    // Other optimizers apply no factor. Code that reads gradients before the
    // step must see them clipped. Norms of divided gradients are added up over
    // ranks below.
    auto gradients = is_trained_with_copies(own, *engine) &&
                             std::none_of(own.begin(), own.end(), is_divided)
                         ? engine->kept_gradients(own)
                         : std::vector<at::Tensor>();
    if (!gradients.empty()) {
      kept.push_back({.gradients = std::move(gradients), .keeper = engine});
      keepers.insert(engine);
    }
  }
  // First the whole gradients, then those that ranks hold in slices. Every rank
  // reduces the latter in the same order, even if it holds no slice.
  std::vector<HeldGradients> held(1);
  std::map<std::pair<const ParallelEngine*, MeshDimension>, size_t> group_of;
  for (const auto& parameter : parameters) {
    const auto* engine = engine_of(parameter, models);
    if (keepers.contains(engine)) {
      continue;
    }
    auto gradient = engine ? engine->gradient(parameter) : parameter.grad();
    size_t group_index = 0;
    const auto divided = engine == nullptr
                             ? MeshDimension()
                             : engine->tensor_layout(parameter).divided_along();
    if (divided != MeshDimension()) {
      group_index = group_of.emplace(std::pair(engine, divided), held.size())
                        .first->second;
      const auto options = engine->trained(parameter).options();
      if (group_index == held.size()) {
        held.push_back(
            {.ranks = engine->mesh().groups(divided),
             .norm_options = options.dtype(at::kFloat)});
      }
      if (options.dtype() == at::kDouble) {
        held[group_index].norm_options = options;
      }
    }
    if (gradient.defined()) {
      held[group_index].gradients.push_back(std::move(gradient));
    }
  }
  held.insert(held.end(), kept.begin(), kept.end());
  return held;
}

at::Tensor TrainingRun::clip_grad_norm(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type) {
  if (!context_.step_state->sync_gradients()) {
    return at::full({}, std::nan(""));
  }
  unscale_owners_of(parameters);
  auto norm =
      clip_gradient_norm(held_gradients(parameters, true), max_norm, norm_type);
  if (std::isfinite(max_norm)) {
    context_.step_state->note_clip();
  }
  return norm;
}

void TrainingRun::clip_grad_value(
    const std::vector<at::Tensor>& parameters,
    double limit) {
  if (context_.step_state->sync_gradients()) {
    unscale_owners_of(parameters);
    clip_gradient_values(held_gradients(parameters, false), limit);
    context_.step_state->note_clip();
  }
}

bool TrainingRun::optimizer_step_was_skipped() const {
  const auto living = context_.living_optimizers();
  return std::any_of(living.begin(), living.end(), [](const auto& optimizer) {
    return optimizer->was_skipped();
  });
}

SchedulerMoves TrainingRun::scheduler_moves(SchedulerCall call) const {
  if (context_.step_state->is_captured()) {
    throw UsageError(
        "[capture] A replay of the recorded step would skip the scheduler's "
        "step(). Call it after the captured function");
  }
  call.sync_gradients = context_.step_state->sync_gradients();
  call.stepping = context_.options.scheduler_stepping;
  call.num_processes = num_scheduled_processes();
  return accelerate::scheduler_moves(call);
}

int TrainingRun::num_scheduled_processes() const {
  const auto* recorder = StepRecorder::get();
  return recorder != nullptr && recorder->is_reference()
             ? recorder->num_merged_ranks()
             : mesh().size(MeshDimension::kData);
}

bool TrainingRun::check_trigger() {
  return is_on_any_rank(
      group(), "check_trigger", std::exchange(trigger_, false));
}

void TrainingRun::shut_down() {
  report_.say_step_times();
  report_.end_journal();
  std::exception_ptr problem;
  try {
    checkpoints_.shut_down();
  } catch (const Error&) {
    problem = std::current_exception();
  }
  context_.assembly.group.shutdown();
  if (problem) {
    std::rethrow_exception(problem);
  }
}

bool TrainingRun::should_stop() const {
  watch_for_stop_requests();
  return is_on_any_rank(group(), "should_stop", is_stop_requested());
}

} // namespace accelerate
