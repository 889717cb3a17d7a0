// SPDX-License-Identifier: Apache-2.0
#include "run/training_run.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerate/c10d.h"
#include "accelerate/error.h"
#include "base/str.h"
#include "checkpoint/job_name.h"
#include "comm/agreement.h"
#include "comm/first_value.h"
#include "comm/hang_exchange.h"
#include "comm/process_group_impl.h"
#include "device/device_graph.h"
#include "device/host_copies.h"
#include "device/streams.h"
#include "hardware/gpu_use.h"
#include "observe/hint.h"
#include "observe/rank_record.h"
#include "observe/watchdog.h"
#include "parallel/recorded_part.h"
#include "parallel/seam_scope.h"
#include "parallel/shared_tensors.h"
#include "process/run_report.h"
#include "random/generators.h"
#include "run/background_save.h"
#include "run/device_marks.h"
#include "run/ranks_equal.h"
#include "run/step_notes.h"
#include "tracking/rank_journal.h"

namespace accelerate {
namespace {

/// With `debug`, weights are compared once in this many backwards.
constexpr int64_t kChecksEvery = 100;

/// Accelerator memory in use by tensors; 0 if its allocator does not count.
int64_t allocated_bytes(c10::Device device) {
  auto* allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) {
    return 0;
  }
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.index())
      .allocated_bytes[kAll]
      .current;
}

// Scaled fp16 gradients could not be unscaled without loss.
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

std::shared_ptr<GradScaler> make_scaler(
    const Assembly& assembly,
    const std::shared_ptr<StepReductions>& reductions,
    const GradScalerOptions& options) {
  if (assembly.precision != Precision::kFp16) {
    return nullptr;
  }
  GradScaler::Agreement agree;
  if (assembly.group.world_size() > 1) {
    agree = [reductions](at::Tensor& flags) {
      reductions->reduce(flags, ReduceOp::kMax);
    };
  }
  return std::make_shared<GradScaler>(options, std::move(agree));
}

/// Ranks whose losses are scaled differently would average gradients
/// incorrectly.
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

template <class Object>
std::vector<std::shared_ptr<Object>> living(
    const std::vector<std::weak_ptr<Object>>& objects) {
  std::vector<std::shared_ptr<Object>> alive;
  for (const auto& object : objects) {
    if (auto found = object.lock()) {
      alive.push_back(std::move(found));
    }
  }
  return alive;
}

/// The engine of the model that `tensor` belongs to, or is trained for; null if
/// there is none.
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

} // namespace

TrainingRun::TrainingRun(
    AcceleratorOptions options,
    const EnvLookup& env,
    std::shared_ptr<StepState> step_state)
    : options_(std::move(options)),
      assembly_(assemble(options_, env)),
      job_(first_value(group(), "accelerate/job", new_job_name())),
      step_state_(std::move(step_state)),
      state_(std::make_shared<StateRegistry>()),
      reductions_(std::make_shared<StepReductions>(group(), device())),
      accumulation_(std::make_shared<Accumulation>(
          assembly_.gradient_accumulation_steps,
          options_.accumulation,
          state_,
          step_state_)),
      scaler_(make_scaler(assembly_, reductions_, options_.scaler)),
      input_watch_(
          std::make_shared<InputWatch>(mesh().size(MeshDimension::kData) == 1)),
      times_before_(RankRecord::of_this_thread().step_times()),
      says_step_times_(assembly_.step_summary),
      host_copies_(std::make_shared<HostCopies>()),
      saving_(std::make_unique<BackgroundSave>()) {
  state_->add("progress", progress_);
  state_->add(kAccumulation, accumulation_, StateScope::kPerRank);
  reductions_->set_unfinished(
      [accumulation = accumulation_](const StepReductions::Engines& engines) {
        return accumulation->num_unfinished(engines);
      });
  // What a run before has failed with is over.
  step_state_->forget_shared();
  reductions_->set_updates(
      [state = step_state_] {
        const auto& updates = state->shared().updates;
        return std::accumulate(updates.begin(), updates.end(), int64_t{0});
      },
      [state = step_state_] { state->forget_shared(); });
  if (scaler_) {
    state_->add("scaler", scaler_);
    reductions_->set_share(
        [scaler = scaler_, group = group(), device = device()](int root) {
          share_scale(*scaler, group, device, root);
        });
  }
  RankRecord::of_this_thread().follow(
      device().is_cpu()
          ? std::function<std::unique_ptr<DeviceMarks>()>()
          : [device = device()] { return make_device_marks(device); });
  const auto add_generator = [&](const char* name, c10::Device device) {
    generators_.push_back(std::make_shared<GeneratorState>(device));
    state_->add(name, generators_.back(), StateScope::kPerRank);
  };
  add_generator("generator_cpu", c10::Device(c10::kCPU));
  if (!device().is_cpu()) {
    add_generator("generator_device", device());
  }
}

static void report_steps(const TrainingRun& run) {
  const auto num_steps =
      run.topology().is_main() ? run.step_times().num_steps : 0;
  if (num_steps > 0) {
    RunReporter::of_this_process().set_steps(num_steps);
  }
}

TrainingRun::~TrainingRun() {
  for (const auto& model : living_models()) {
    model->renew = nullptr; // models may outlive their run
  }
  for (const auto& optimizer : living_optimizers()) {
    optimizer->on_new_groups({});
  }
  say_step_times();
  end_journal();
}

StepTimes TrainingRun::step_times() const {
  auto times = RankRecord::of_this_thread().step_times();
  times.num_steps -= times_before_.num_steps;
  const auto num_last = std::min<int64_t>(
      times.num_steps, static_cast<int64_t>(times.last.size()));
  times.last.erase(times.last.begin(), times.last.end() - num_last);
  const auto& before = times_before_.sum;
  times.sum.data -= before.data;
  times.sum.forward -= before.forward;
  times.sum.backward -= before.backward;
  times.sum.communication -= before.communication;
  times.sum.optimizer -= before.optimizer;
  times.sum.checkpoint -= before.checkpoint;
  times.sum.captured -= before.captured;
  times.sum.other -= before.other;
  return times;
}

void TrainingRun::say_step_times() {
  if (std::exchange(says_step_times_, false) && topology().is_main()) {
    const auto summary = step_times().summary();
    if (!summary.empty()) {
      Watchdog::say("[step_times] " + summary);
    }
  }
}

void TrainingRun::keep_journal(const std::filesystem::path& folder) {
  const auto environment =
      options_.environment ? *options_.environment : detect_environment();
  RankJournal::Rank rank = {
      .rank = topology().rank,
      .num_processes = topology().world_size,
      .attempt = environment.rendezvous.attempt,
      .versions = {{"torch", TORCH_VERSION}}};
  if (!device().is_cpu()) {
    rank.device = device().str();
    rank.device_memory = [device = device()] {
      return allocated_bytes(device);
    };
    const auto use = std::make_shared<const GpuUse>(
        gpu_kinds(), system_env, device().index());
    rank.device_busy = [use] { return use->busy_seconds(); };
  }
  end_journal();
  if (topology().is_main()) {
    RunReporter::of_this_process().set_folder(
        std::filesystem::absolute(folder));
  }
  journal_ =
      std::make_unique<RankJournal>(folder, std::move(rank), step_times());
}

void TrainingRun::end_journal() {
  report_steps(*this);
  if (const auto journal = std::exchange(journal_, nullptr)) {
    journal->finish(step_times());
  }
}

void TrainingRun::note_step() {
  const auto now = RankJournal::Clock::now();
  if (RunReporter::of_this_process().is_due(now)) {
    report_steps(*this);
  }
  if (journal_ && journal_->is_due(now)) {
    journal_->write(step_times(), now);
  }
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
  context->reductions = reductions_;
  context->inputs = input_watch_;
  if (evaluation_mode) {
    put_engine(context, EnginePlan());
  } else {
    check_precision(context->model, precision());
    put_engine(context, assembly_.engines);
    let_renew(context);
  }
  context->step_state = step_state_;
  context->device = device().type();
  context->precision = precision();
  context->is_for_evaluation = evaluation_mode;
  context->outputs_to_fp32 = options_.outputs_to_fp32;
  has_models_ = has_models_ || !evaluation_mode;
  std::erase_if(models_, [](const auto& entry) { return entry.expired(); });
  models_.push_back(context);
  state_->add("model", context);
  state_->add("engine", context->engine, StateScope::kPerRank);
  return context;
}

bool TrainingRun::places_parts() const {
  return assembly_.engines.places_parts();
}

void TrainingRun::put_engine(
    const std::shared_ptr<ModelContext>& model,
    const EnginePlan& plan) {
  model->engine = plan.make(
      {.group = mesh().group(MeshDimension::kData),
       .model = model->model,
       .memory = options_.memory,
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
  std::erase_if(seamed_models_, [&](const auto& entry) {
    return entry.expired() || entry.lock() == model;
  });
  if (!model->engine->is_local()) {
    seamed_models_.push_back(model);
  }
}

void TrainingRun::train_evaluated(const std::shared_ptr<ModelContext>& model) {
  check_precision(model->model, precision());
  put_engine(model, assembly_.engines);
  model->is_for_evaluation = false;
  has_models_ = true;
  state_->add("engine", model->engine, StateScope::kPerRank);
  let_renew(model);
}

void TrainingRun::let_renew(const std::shared_ptr<ModelContext>& model) {
  model->renew = [this, weak = std::weak_ptr(model)] {
    const auto context = weak.lock();
    check_precision(context->model, precision());
    put_engine(context, assembly_.engines);
    state_->add("engine", context->engine, StateScope::kPerRank);
    wire();
  };
}

std::shared_ptr<OptimizerStep> TrainingRun::prepare_optimizer(
    std::unique_ptr<OptimizerAdapter> optimizer) {
  std::erase_if(optimizers_, [](const auto& entry) { return entry.expired(); });
  auto step = std::make_shared<OptimizerStep>(
      std::move(optimizer), step_state_, scaler_, state_);
  step->on_new_groups([this] { wire(); });
  optimizers_.push_back(step);
  state_->add("optimizer", step);
  return step;
}

void TrainingRun::wire() {
  for (const auto& model : living_models()) {
    const std::string name = state_->name_of(*model);
    NamedParameters parameters;
    for (size_t i = 0; i < model->model.names.size(); ++i) {
      // Names of the first model are unchanged; those of others are prefixed
      // with their model.
      const auto& own = model->model.names[i];
      parameters.emplace_back(
          name == "model" ? own : str_cat(name, '.', own),
          model->model.parameters[i]);
    }
    for (const auto& optimizer : living_optimizers()) {
      try {
        optimizer->wire(model->engine, parameters);
      } catch (...) {
        // Models that are prepared later do not need it.
        std::erase_if(optimizers_, [&](const auto& entry) {
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
  note_step();
  const bool is_alone = mesh().size(MeshDimension::kData) == 1;
  if (is_alone && has_models_ && !complain_ && !step_state_->has_forward()) {
    throw UsageError(
        "[backward] No prepared model was called since the last step, so with "
        "several processes its gradients would not be synchronised. Call the "
        "model returned by prepare()");
  }
  const auto trains_alone = [&] {
    const auto models = living_models();
    return !models.empty() &&
           std::all_of(models.begin(), models.end(), [](const auto& model) {
             return model->engine->is_alone();
           });
  };
  at::Tensor weighted = accumulation_->weigh(
      loss,
      options.weight,
      *step_state_,
      *reductions_,
      options.weight && trains_alone());
  settle_scale();
  if (scaler_) {
    weighted = scaler_->scale(weighted);
  }
  SeamScope scope(
      seamed_models_,
      [](ModelContext& model) -> ParallelEngine& { return *model.engine; },
      &ParallelEngine::before_backward,
      &ParallelEngine::abandon_backward);
  if (options.retain_graph) {
    for (const auto& model : living_models()) {
      model->engine->await_another_backward();
    }
  }
  if (debug() && progress_->num_backwards % kChecksEvery == 0 &&
      !reductions_->is_joining()) {
    check_weights();
  }
  const bool synchronises = sends_gradients();
  step_state_->set_synchronised(synchronises);
  if (!reductions_->is_joining() && synchronises) {
    // Compared while autograd computes the first gradients.
    announce(
        group(),
        options.weight ? kWeightedBackward : kPlainBackward,
        step_notes().encode(),
        [watch = input_watch_,
         num_optimizers = living_optimizers().size()](const auto& notes) {
          watch->hear(StepNotes::inputs_of(notes));
          check_steps(notes, num_optimizers);
        });
  }
  group().impl()->guard(
      "backward",
      [&] {
        const auto recorded = record_part(kRecordedBackward);
        run(weighted);
      },
      Part::kBackward);
  settle(group());
  scope.finish([](ParallelEngine& engine) { engine.after_backward(); });
  step_state_->note_backward();
  ++progress_->num_backwards;
  if (!is_alone) {
    check_arrivals();
  }
  watch_loss(loss);
  watch_for_optimizers();
  if (input_watch_->is_shared() && topology().is_main()) {
    warn(
        "[backward] The inputs of the first 3 steps were the same on all "
        "ranks, so all ranks train on the same data. Pass the data loader to "
        "prepare()");
  }
}

bool TrainingRun::sends_gradients() const {
  const auto seamed = living(seamed_models_);
  return std::any_of(seamed.begin(), seamed.end(), [](const auto& model) {
    return model->engine->sync();
  });
}

StepNotes TrainingRun::step_notes() const {
  return {.inputs = input_watch_->take(), .shared = step_state_->shared()};
}

void TrainingRun::warn(const std::string& what) const {
  // With `debug`, warnings become errors.
  if (complain_ && !debug()) {
    complain_(what);
  } else {
    Watchdog::say(what);
  }
}

void TrainingRun::watch_loss(const at::Tensor& loss) {
  // Averaged gradients make the losses of all ranks NaN.
  if (topology().is_main() && !step_state_->is_captured() &&
      loss_watch_.is_lost(loss)) {
    warn(str_cat(
        "[backward] The loss has been NaN or infinite for ",
        LossWatch::kPatience,
        " steps in a row, so the weights are probably NaN too. Load an earlier "
        "checkpoint, then lower the learning rate or check the data"));
  }
}

void TrainingRun::watch_for_optimizers() {
  // Only in the first calls: scripts may inspect gradients for a while before
  // they train.
  constexpr int64_t kLooksAt = 10;
  if (!step_state_->sync_gradients() || ++num_synchronised_ != kLooksAt ||
      !topology().is_main()) {
    return;
  }
  const auto optimizers = living_optimizers();
  for (const auto& model : living_models()) {
    const auto trains = [&](const auto& optimizer) {
      const auto own = optimizer->optimizer().parameters();
      return std::any_of(own.begin(), own.end(), [&](const auto& parameter) {
        return model->index_of.contains(parameter.unsafeGetTensorImpl());
      });
    };
    const bool is_sharded = model->engine->is_divided();
    if (model->is_for_evaluation || !is_trained(model->model) ||
        (num_accumulation_steps() == 1 && !scaler_ && !is_sharded) ||
        std::any_of(optimizers.begin(), optimizers.end(), trains)) {
      continue;
    }
    warn(str_cat(
        "[backward] No prepared optimizer trains '",
        state_->name_of(*model),
        "'. Pass its optimizer to prepare(); otherwise the optimizer ",
        is_sharded ? "misses the gradients that other ranks hold"
        : scaler_  ? "uses fp16 gradients that are still scaled"
                   : "steps in every micro-batch"));
    return;
  }
}

void TrainingRun::check_weights() const {
  for (const auto& model : living_models()) {
    const auto& engine = *model->engine;
    // Ranks may differ while they train by themselves.
    if (engine.is_local() || !engine.sync()) {
      continue;
    }
    ParameterSet whole;
    for (size_t i = 0; i < model->model.names.size(); ++i) {
      const auto& parameter = model->model.parameters[i];
      if (!engine.tensor_layout(parameter).is_divided()) {
        whole.names.push_back(model->model.names[i]);
        whole.parameters.push_back(parameter);
      }
    }
    check_ranks_equal(group(), whole);
  }
}

void TrainingRun::check_arrivals() {
  // Once per kind: some programs step another model on purpose, for comparison.
  const auto complain = [&](bool& is_said, const std::string& what) {
    if (!complain_) {
      throw UsageError(what);
    }
    if (!std::exchange(is_said, true)) {
      complain_(what);
    }
  };
  bool has_come = false;
  for (const auto& model : living_models()) {
    const auto arrival = model->engine->arrival();
    has_come = has_come || (arrival != GradientArrival::kNone &&
                            !model->engine->is_local());
    if (arrival == GradientArrival::kStayed) {
      complain(
          model->is_said_to_stay,
          str_cat(
              "[backward] The gradients of '",
              state_->name_of(*model),
              "' were not synchronised between processes: the loss comes from "
              "the module that was passed to prepare(), or from a forward "
              "whose backward has already run. Call the model returned by "
              "prepare(), once for each backward"));
    }
  }
  if (!has_come) {
    complain(
        is_said_to_reach_none_,
        "[backward] This loss does not depend on any prepared model, so its "
        "gradients are not synchronised. Call the model returned by prepare()");
  }
  for (const auto& optimizer : living_optimizers()) {
    if (const auto place = optimizer->unowned_parameter()) {
      complain(
          is_unowned_said_,
          str_cat(
              "[backward] Parameter ",
              *place,
              " of '",
              state_->name_of(*optimizer),
              "' does not belong to a prepared model, so its gradient is not "
              "synchronised and its value will differ between processes. Make "
              "it a parameter of a prepared model"));
    }
  }
}

JoinGuard TrainingRun::begin_join(
    std::vector<ParallelEngine*> engines,
    JoinOptions options,
    bool even) const {
  return JoinGuard(reductions_, std::move(engines), options, even);
}

AccumulateGuard TrainingRun::begin_micro_batch(
    std::vector<std::shared_ptr<ModelContext>> models) {
  AccumulateGuard guard;
  accumulation_->begin(*step_state_, std::move(models), guard);
  return guard;
}

std::vector<std::shared_ptr<OptimizerStep>> TrainingRun::living_optimizers()
    const {
  return living(optimizers_);
}

std::vector<std::shared_ptr<ModelContext>> TrainingRun::living_models() const {
  return living(models_);
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
  const auto models = living_models();
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& parameter : parameters) {
    wanted.insert(parameter.unsafeGetTensorImpl());
    if (const auto* engine = engine_of(parameter, models)) {
      wanted.insert(engine->trained(parameter).unsafeGetTensorImpl());
    }
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

bool TrainingRun::is_trained_with_copies(
    const std::vector<at::Tensor>& parameters,
    const ParallelEngine& engine) const {
  std::unordered_set<const c10::TensorImpl*> trained;
  for (const auto& parameter : parameters) {
    trained.insert(engine.trained(parameter).unsafeGetTensorImpl());
  }
  for (const auto& optimizer : living_optimizers()) {
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
  const auto models = living_models();
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
    // Other optimizers apply no factor; code that reads gradients in between
    // must see them clipped.
    auto gradients = is_trained_with_copies(own, *engine)
                         ? engine->kept_gradients(own)
                         : std::vector<at::Tensor>();
    if (!gradients.empty()) {
      kept.push_back({.gradients = std::move(gradients), .keeper = engine});
      keepers.insert(engine);
    }
  }
  // First whole gradients, then those that ranks hold in slices: every rank
  // reduces these in the same order, whether or not it holds a slice itself.
  std::vector<HeldGradients> held(1);
  std::map<std::pair<const ParallelEngine*, MeshDimension>, size_t> place_of;
  for (const auto& parameter : parameters) {
    const auto* engine = engine_of(parameter, models);
    if (keepers.contains(engine)) {
      continue;
    }
    auto gradient = engine ? engine->gradient(parameter) : parameter.grad();
    size_t place = 0;
    const auto divided = engine == nullptr
                             ? MeshDimension()
                             : engine->tensor_layout(parameter).divided_along();
    if (divided != MeshDimension()) {
      place = place_of.emplace(std::pair(engine, divided), held.size())
                  .first->second;
      const auto options = engine->trained(parameter).options();
      if (place == held.size()) {
        held.push_back(
            {.ranks = engine->mesh().groups(divided),
             .norm_options = options.dtype(at::kFloat)});
      }
      if (options.dtype() == at::kDouble) {
        held[place].norm_options = options;
      }
    }
    if (gradient.defined()) {
      held[place].gradients.push_back(std::move(gradient));
    }
  }
  held.insert(held.end(), kept.begin(), kept.end());
  return held;
}

at::Tensor TrainingRun::clip_grad_norm(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type) {
  if (!step_state_->sync_gradients()) {
    return at::full({}, std::nan(""));
  }
  unscale_owners_of(parameters);
  auto norm =
      clip_gradient_norm(held_gradients(parameters, true), max_norm, norm_type);
  if (std::isfinite(max_norm)) {
    step_state_->note_clip();
  }
  return norm;
}

void TrainingRun::clip_grad_value(
    const std::vector<at::Tensor>& parameters,
    double limit) {
  if (step_state_->sync_gradients()) {
    unscale_owners_of(parameters);
    clip_gradient_values(held_gradients(parameters, false), limit);
    step_state_->note_clip();
  }
}

bool TrainingRun::optimizer_step_was_skipped() const {
  const auto living = living_optimizers();
  return std::any_of(living.begin(), living.end(), [](const auto& optimizer) {
    return optimizer->was_skipped();
  });
}

SchedulerMoves TrainingRun::scheduler_moves(SchedulerCall call) const {
  if (step_state_->is_captured()) {
    throw UsageError(
        "[capture] A replay of the recorded step would skip the scheduler's "
        "step(). Call it after the captured function");
  }
  call.sync_gradients = step_state_->sync_gradients();
  call.stepping = options_.scheduler_stepping;
  call.num_processes = topology().world_size;
  return accelerate::scheduler_moves(call);
}

std::string TrainingRun::why_not_to_capture(
    const std::vector<at::Tensor>& inputs) {
  if (!has_device_graphs(device())) {
    return str_cat(device(), " has no device graphs. Use a GPU");
  }
  if (auto why = assembly_.engines.why_not_to_capture(); !why.empty()) {
    return why;
  }
  if (const auto carrier = to_c10d(group())) {
    const auto name = carrier->getBackend(device().type())->getBackendName();
    if (name != "nccl") {
      return str_cat(
          "the backend ",
          name,
          " needs the host to synchronise gradients. Use NCCL");
    }
    if (group().world_size() > 1 && !group().impl()->hosts_meet()) {
      return "the process group has no CPU backend. Create it with "
             "cpu:gloo,cuda:nccl";
    }
    if (debug()) {
      return "debug mode compares collectives on the host. Turn it off";
    }
  }
  for (const auto& model : living_models()) {
    if (auto why = model->engine->why_not_to_record(); !why.empty()) {
      return why;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() &&
        (inputs[i].device() != device() || inputs[i].requires_grad())) {
      return str_cat(
          "input ",
          i,
          inputs[i].requires_grad()
              ? std::string(" requires a gradient. Pass a detached tensor")
              : str_cat(
                    " is on ", inputs[i].device(), ". Move it to ", device()));
    }
  }
  for (const auto& optimizer : living_optimizers()) {
    if (auto why = optimizer->optimizer().prepare_capture(); !why.empty()) {
      return why;
    }
    if (scaler_ && !optimizer->optimizer().takes_scalars()) {
      return str_cat(
          "with fp16, this optimizer needs the host to skip steps. Use ",
          hint(
              "AdamW, Adam or SGD of accelerate::optim",
              "an optimizer with fused=True"));
    }
  }
  // Replays of one accumulation add to the same memory.
  step_state_->set_keeps_gradients(num_accumulation_steps() > 1);
  return {};
}

std::unique_ptr<StreamScope> TrainingRun::enter_captured_step() {
  if (group().is_solo()) {
    return nullptr;
  }
  auto scope = std::make_unique<StreamScope>(StreamRole::kRecording, device());
  for (const auto& model : living_models()) {
    model->engine->prepare_recording();
  }
  return scope;
}

std::string TrainingRun::capture_key() const {
  std::string key = step_state_->sync_gradients() ? " updates" : " adds";
  for (const auto& model : living_models()) {
    key += model->engine->sync() ? " meets" : " stays";
    key += model->engine->shares_buffers_next() ? " shares" : "";
  }
  return key;
}

bool TrainingRun::is_settled() const {
  const auto models = living_models();
  return std::all_of(models.begin(), models.end(), [](const auto& model) {
    return model->engine->is_settled();
  });
}

RunTrace TrainingRun::trace(const std::function<void()>& work) {
  write_learning_rates();
  settle_scale();
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
  for (const auto& model : living_models()) {
    for (const auto& parameter : model->model.parameters) {
      const auto trained = model->engine->trained(parameter);
      // Applies pending factors: if the recording fails, the factor it computes
      // is NaN.
      model->engine->gradient(parameter);
      gradients.emplace_back(parameter, parameter.grad());
      gradients.emplace_back(trained, trained.grad());
    }
  }
  std::optional<DeferredMeetings> meetings;
  std::shared_ptr<std::atomic<int64_t>> replayed;
  uint64_t number = 0;
  if (const auto carrier = to_c10d(group())) {
    meetings.emplace(group());
    replayed = uncounted_collectives(carrier);
    number = group().impl()->last_number();
  }
  int64_t num_collectives = 0;
  // Recorded effects count when they are replayed.
  const auto uncount = [&] {
    if (replayed) {
      num_collectives =
          static_cast<int64_t>(group().impl()->last_number() - number);
      *replayed -= num_collectives;
    }
  };
  const auto shares_buffers = [&] {
    std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares;
    for (const auto& model : living_models()) {
      shares.emplace_back(model, model->engine->shares_buffers_next());
    }
    return shares;
  };
  const auto shared_before = shares_buffers();
  const auto counts = step_state_->counts();
  const auto shared = step_state_->shared();
  const int64_t num_backwards = progress_->num_backwards;
  const auto optimizers = living_optimizers();
  std::vector<int64_t> num_calls;
  for (const auto& optimizer : optimizers) {
    optimizer->set_done(false);
    num_calls.push_back(optimizer->num_calls());
  }
  step_state_->set_captured(true);
  try {
    work();
  } catch (...) {
    uncount();
    set_shares_buffers(shared_before);
    step_state_->set_captured(false);
    step_state_->set_counts(counts);
    step_state_->set_shared(shared);
    accumulation_->note_backwards(
        num_backwards - progress_->num_backwards,
        step_state_->sync_gradients());
    progress_->num_backwards = num_backwards;
    for (auto& [tensor, gradient] : gradients) {
      tensor.mutable_grad() = gradient;
    }
    for (const auto& model : living_models()) {
      model->engine->scale_kept_gradients({});
    }
    for (const auto& optimizer : optimizers) {
      optimizer->set_done(false);
      if (scaler_) {
        scaler_->forget(optimizer.get());
      }
    }
    throw;
  }
  step_state_->set_captured(false);
  uncount();
  const auto now = step_state_->counts();
  // Each replay counts.
  auto in_step = step_state_->shared();
  in_step -= shared;
  step_state_->set_shared(shared);
  RunTrace trace{
      {now.num_forwards - counts.num_forwards,
       now.num_backwards - counts.num_backwards},
      progress_->num_backwards - num_backwards,
      in_step,
      sends_gradients()};
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const auto& optimizer = optimizers[i];
    if (optimizer->num_calls() != num_calls[i]) {
      trace.optimizers.push_back(
          {optimizer, optimizer->is_done(), optimizer->overflow()});
    }
  }
  if (meetings) {
    trace.meetings = meetings->take();
  }
  trace.num_collectives = num_collectives;
  trace.shares_buffers = shares_buffers();
  return trace;
}

void TrainingRun::settle_scale() {
  if (scaler_) {
    move_scale(*scaler_, living_optimizers());
  }
}

void TrainingRun::end_recorded_step() {
  const auto optimizers = living_optimizers();
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
  settle_scale();
}

void TrainingRun::repeat(const RunTrace& trace) {
  note_step();
  settle_scale();
  const auto counts = step_state_->counts();
  step_state_->set_counts(
      {counts.num_forwards + trace.counts.num_forwards,
       counts.num_backwards + trace.counts.num_backwards});
  step_state_->note_replayed_backwards(trace.num_backwards);
  accumulation_->note_backwards(
      trace.num_backwards, step_state_->sync_gradients());
  progress_->num_backwards += trace.num_backwards;
}

void TrainingRun::begin_replay(const RunTrace& trace) {
  hold_meetings(group(), trace.meetings);
  if (const auto carrier = to_c10d(group())) {
    *uncounted_collectives(carrier) += trace.num_collectives;
  }
}

void TrainingRun::set_shares_buffers(
    const std::vector<std::pair<std::weak_ptr<ModelContext>, bool>>& shares) {
  for (const auto& [model, next] : shares) {
    if (const auto alive = model.lock()) {
      alive->engine->set_shares_buffers_next(next);
    }
  }
}

void TrainingRun::end_replay(const RunTrace& trace) {
  set_shares_buffers(trace.shares_buffers);
  if (trace.num_backwards > 0) {
    step_state_->set_synchronised(trace.is_synchronised);
  }
  auto shared = step_state_->shared();
  step_state_->set_shared(shared += trace.shared);
  for (const auto& [optimizer, is_done, overflow] : trace.optimizers) {
    if (const auto alive = optimizer.lock()) {
      // Other graphs may overwrite the flag.
      alive->set_done(
          is_done, overflow.defined() ? overflow.clone() : overflow);
    }
  }
}

void TrainingRun::write_learning_rates() {
  for (const auto& optimizer : living_optimizers()) {
    optimizer->write_learning_rates(device());
  }
}

size_t TrainingRun::tensor_places() const {
  size_t places = 0;
  const auto mix = [&](size_t value) {
    places = places * 0x9e3779b97f4a7c15u + value;
  };
  for (const auto& model : living_models()) {
    for (const auto& parameter : model->model.parameters) {
      mix(reinterpret_cast<size_t>(parameter.const_data_ptr()));
    }
    mix(model->engine->num_layouts());
  }
  for (const auto& optimizer : living_optimizers()) {
    mix(static_cast<size_t>(optimizer->num_loads()));
  }
  return places;
}

bool TrainingRun::check_trigger() {
  return is_on_any_rank(
      group(), "check_trigger", std::exchange(trigger_, false));
}

void TrainingRun::shut_down() {
  say_step_times();
  end_journal();
  std::exception_ptr problem;
  try {
    wait_for_save();
  } catch (const Error&) {
    problem = std::current_exception();
  }
  saving_group_.reset();
  assembly_.group.shutdown();
  if (problem) {
    std::rethrow_exception(problem);
  }
}

std::vector<at::Tensor> TrainingRun::gather_real(
    const detail::Leaves& leaves) const {
  detail::Leaves real = leaves;
  for (auto& tensor : real.tensors) {
    if (tensor.defined()) {
      tensor = real_rows(tensor);
    }
  }
  return detail::all_gather(group(), real);
}

int64_t TrainingRun::num_real(int64_t size, bool are_copies) const {
  const auto batch = step_state_->batch_in_use();
  if (!batch) {
    return size;
  }
  return are_copies && batch->stands_for_full(size) ? batch->num_real
                                                    : batch->num_real_of(size);
}

std::optional<std::string> TrainingRun::mixed_repeats(int64_t size) const {
  const auto batch = step_state_->batch_in_use();
  if (!batch || !batch->mixes_repeats(size)) {
    return std::nullopt;
  }
  return str_cat(
      batch->num_samples - batch->num_real,
      " of the ",
      batch->num_samples,
      " samples in this batch are repeats, and it is unknown "
      "which of the ",
      size,
      " rows belong to them. Pass one row per sample, turn even_batches off, "
      "or use a batch sampler without a fixed batch size, which makes the "
      "loader repeat whole batches.");
}

at::Tensor TrainingRun::real_rows(const at::Tensor& values) const {
  const auto batch = step_state_->batch_in_use();
  if (!batch || values.dim() == 0) {
    return values;
  }
  const int64_t size = values.size(0);
  // The device is waited for only in the short last batch of an epoch.
  const auto are_copies = [&] {
    const auto first = values.narrow(0, 0, 1);
    const auto is_nan = values.isnan().logical_and(first.isnan());
    return values.eq(first).logical_or(is_nan).all().item<bool>();
  };
  const bool are_of_full = batch->stands_for_full(size) &&
                           values.is_floating_point() && are_copies();
  return values.narrow(0, 0, num_real(size, are_of_full));
}

} // namespace accelerate
