// SPDX-License-Identifier: Apache-2.0
#include "accelerate/accelerator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "accelerate/detail/needs_process_group.h"
#include "accelerate/error.h"
#include "core/base/atomic_file.h"
#include "core/base/exit_codes.h"
#include "core/base/str.h"
#include "core/tracking/run_folder.h"
#include "training/accelerator/module_adapter.h"
#include "training/accelerator/run_trackers.h"
#include "training/accelerator/uncaught.h"
#include "training/optim/prepared_optimizers.h"
#include "training/optim/torch_optimizer.h"
#include "training/run/ranks_equal.h"
#include "training/run/training_run.h"
#include "training/verification/step_recorder.h"

namespace accelerate {
struct Accelerator::State {
  explicit State(AcceleratorOptions options)
      : run(std::move(options), system_env),
        processes(run.topology(), run.group()) {}

  TrainingRun run;
  ProcessControl processes;
  /// All prepared objects, so that a second `prepare` finds them again.
  std::vector<
      std::pair<std::weak_ptr<torch::nn::Module>, std::weak_ptr<ModelContext>>>
      models;
  std::shared_ptr<PreparedOptimizers> optimizers =
      std::make_shared<PreparedOptimizers>();
  /// Registered by `init_trackers`.
  std::shared_ptr<RunTrackers> trackers =
      std::make_shared<RunTrackers>(Trackers());
  bool has_warned_of_repeats = false;
  bool has_warned_of_schedulers = false;

  void warn_of_torch_schedulers();
};

void Accelerator::State::warn_of_torch_schedulers() {
  if (has_warned_of_schedulers || !processes.is_main_process()) {
    return;
  }
  for (const auto& [optimizer, step] : optimizers->entries) {
    const auto living = step.lock();
    has_warned_of_schedulers |= living && living->has_unsaved_schedule();
  }
  if (has_warned_of_schedulers) {
    std::cerr << "[save_state] The learning rate of an optimizer has changed, "
                 "but its scheduler is not saved, because torch::optim "
                 "schedulers have no state to save. Use accelerate::Scheduler "
                 "(schedulers.h) to resume a schedule.\n";
  }
}

namespace {

constexpr std::string_view kLoader = "loader";

/// Describes in one line where the next loop over each loader resumes. Omits
/// loaders that start an epoch.
std::string positions(const StateRegistry& registry) {
  std::string line;
  for (const auto& [name, object] : registry.objects()) {
    if (name != kLoader && !name.starts_with(str_cat(kLoader, '_'))) {
      continue;
    }
    const auto state = object->state_dict();
    if (!state.contains("epoch") || !state.contains("num_done")) {
      continue; // an object of user code with such a name
    }
    const auto num_done = state.get<int64_t>("num_done");
    if (num_done > 0) {
      line += str_cat(
          line.empty() ? "" : "; ",
          name,
          " resumes epoch ",
          state.get<int64_t>("epoch"),
          " after ",
          num_done,
          ' ',
          state.get<std::string>("unit"));
    }
  }
  return line;
}

} // namespace

Accelerator::Accelerator(AcceleratorOptions options)
    : state_(std::make_unique<State>(std::move(options))) {
  report_uncaught_exceptions(state_->run.topology());
}

Accelerator::~Accelerator() = default;

c10::Device Accelerator::device() const {
  return state_->run.device();
}
const ProcessControl& Accelerator::processes() const {
  return state_->processes;
}
const ProcessGroup& Accelerator::process_group() const {
  return state_->run.group();
}

const ProcessGroup& Accelerator::data_group() const {
  return state_->run.mesh().group(MeshDimension::kData);
}

DistributedType Accelerator::distributed_type() const {
  return state_->run.distributed_type();
}

std::shared_ptr<ModelContext> Accelerator::prepare_module(
    const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) {
    throw UsageError("[prepare] The module is a null pointer. Create it first");
  }
  auto& models = state_->models;
  std::erase_if(models, [](const auto& entry) {
    return entry.first.expired() || entry.second.expired();
  });
  for (const auto& [known, prepared] : models) {
    if (known.lock() == module) {
      auto context = prepared.lock();
      context->prepare_again(parameters_of(*module));
      return context;
    }
  }
  check_values(parameters_of(*module));
  if (state_->run.options().device_placement) {
    move_module(
        *module,
        device(),
        /*with_parameters=*/!state_->run.shards_parameters());
  }
  detail::give_process_group(*module, data_group());
  auto context =
      state_->run.prepare_model(parameters_of(*module), module->name());
  models.emplace_back(module, context);
  return context;
}

std::shared_ptr<OptimizerStep> Accelerator::prepare_optimizer(
    torch::optim::Optimizer& optimizer) {
  auto& optimizers = state_->optimizers->entries;
  std::erase_if(
      optimizers, [](const auto& entry) { return entry.second.expired(); });
  if (auto known = state_->optimizers->find(optimizer)) {
    return known;
  }
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError(
        "[prepare] LBFGS needs a closure in step(), which prepared optimizers "
        "do not support. Use another optimizer");
  }
  auto step = state_->run.prepare_optimizer(
      std::make_unique<TorchOptimizer>(optimizer));
  optimizers.emplace_back(&optimizer, step);
  step->note_shared(); // The caller has the optimizer itself.
  note_prepared(optimizer, step);
  return step;
}

Scheduler Accelerator::prepare_scheduler(Scheduler scheduler) {
  scheduler.prepare(
      state_->optimizers,
      state_->run.options().scheduler_stepping,
      data_group().world_size());
  state().add("scheduler", scheduler.stateful());
  return scheduler;
}

void Accelerator::wire() {
  state_->run.wire();
}

StateRegistry& Accelerator::state() {
  return *state_->run.state();
}

std::filesystem::path Accelerator::save_state(
    const std::filesystem::path& folder,
    const SaveStateOptions& options) {
  auto& run = state_->run;
  RunCheckpoints::SaveWith with = {
      .is_of_all = true, .asynchronous = options.asynchronous};
  auto target = folder;
  if (folder.empty()) {
    with.total_limit = run.options().checkpoints.total_limit;
    target = run.checkpoints().next_checkpoint();
  }
  state_->warn_of_torch_schedulers();
  run.checkpoints().save_state(target, with);
  state_->trackers->trackers().mark("checkpoint");
  return target;
}

StepTimes Accelerator::step_times() const {
  return state_->run.report().step_times();
}

void Accelerator::init_trackers(
    const std::string& project,
    TrackingOptions options) {
  const auto environment =
      state_->run.options().environment.value_or(detect_environment());
  check_project(project);
  trackers().finish();
  state_->run.report().end_journal();
  const auto folder = options.logging_dir / project;
  const bool is_watchable = std::any_of(
      options.log_with.begin(), options.log_with.end(), [](auto& choice) {
        return choice.name() == kJsonLinesTracker;
      });
  const bool tracks = is_main_process() && StepRecorder::get() == nullptr;
  auto trackers = tracks ? Trackers(
                               project,
                               std::move(options),
                               num_processes(),
                               environment.rendezvous.attempt)
                         : Trackers();
  state_->trackers = std::make_shared<RunTrackers>(std::move(trackers));
  state().add(kTrackersState, state_->trackers);
  if (is_watchable && StepRecorder::get() == nullptr) {
    state_->run.report().keep_journal(folder);
  }
}

Trackers& Accelerator::trackers() {
  return state_->trackers->trackers();
}

void Accelerator::log_images(
    const std::string& name,
    const at::Tensor& images,
    std::optional<int64_t> step) {
  check_images(name, images);
  trackers().log_images(
      name,
      trackers().empty() ? std::vector<TrackedImage>() : images_of(images),
      step);
}

void Accelerator::log_histogram(
    const std::string& name,
    const at::Tensor& values,
    std::optional<int64_t> step) {
  check_histogram(name, values);
  const auto numbers =
      trackers().empty()
          ? at::empty({0}, at::kDouble)
          : values.detach().to(at::kCPU, at::kDouble).contiguous();
  trackers().log_histogram(
      name,
      {numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())},
      step);
}

void Accelerator::wait_for_save() const {
  state_->run.checkpoints().wait_for_save();
}

void Accelerator::load_state(const std::filesystem::path& folder) {
  const auto say = [](const std::string& line) { std::cerr << line << '\n'; };
  const auto found = state_->run.checkpoints().find_checkpoint(folder, say);
  for (const auto& line : state_->run.checkpoints().load_state(found)) {
    say(line);
  }
  const auto loaders = positions(state());
  if (!loaders.empty() && is_main_process()) {
    say("[load_state] " + loaders);
  }
}

bool Accelerator::should_stop() {
  return state_->run.should_stop();
}

void Accelerator::save_and_leave(const std::filesystem::path& folder) {
  try {
    wait_for_save();
  } catch (const Error& error) {
    std::cerr << error.what() << '\n'; // this save may still succeed
  }
  save_state(folder);
  end_training();
  std::exit(kExitPreempted);
}

std::optional<std::filesystem::path> Accelerator::latest_checkpoint() const {
  return state_->run.checkpoints().latest_intact_on_this_rank();
}

void Accelerator::write_model(
    const ModelContext& model,
    const std::filesystem::path& folder,
    const safetensors::SaveOptions& options,
    const ConfigText& config) const {
  if (StepRecorder::get() != nullptr) {
    return; // `accelerate verify` leaves no files.
  }
  const auto& checkpoints = state_->run.checkpoints();
  checkpoints.save_model(model, folder, options);
  if (!config || !checkpoints.is_saving_main()) {
    return;
  }
  // Files contain the dtype of the weights, which may be master weights.
  auto dtype = at::kFloat;
  const auto& parameters = model.model.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto own = model.engine->trained(parameters[i]).scalar_type();
    dtype = i == 0 ? own : at::promote_types(dtype, own);
  }
  AtomicFile file(folder / "config.json");
  file.write(std::string_view(config(dtype)));
  file.commit();
}

std::optional<c10::Device> Accelerator::placement() const {
  if (!state_->run.options().device_placement) {
    return std::nullopt;
  }
  return device();
}

std::shared_ptr<StepState> Accelerator::step_state() const {
  return state_->run.step_state();
}

detail::LoaderContext Accelerator::loader_context() const {
  const auto& group = data_group();
  const auto* recorder = StepRecorder::get();
  const bool is_merged = recorder != nullptr && recorder->is_reference();
  return {
      .group = group,
      .shard = is_merged ? ShardOptions{0, recorder->num_merged_ranks()}
                         : ShardOptions{
                               recorder != nullptr &&
                                       recorder->has_same_batches()
                                   ? 0
                                   : group.rank(),
                               group.world_size()},
      .is_merged = is_merged,
      .device = placement(),
      .configuration = state_->run.options().data_loader,
      .step_state = step_state()};
}

void Accelerator::backward(const at::Tensor& loss, BackwardOptions options) {
  if (!loss.defined() || loss.numel() != 1 || !loss.requires_grad()) {
    throw UsageError(str_cat(
        "[backward] ",
        !loss.defined() ? std::string("The loss is undefined. Compute it first")
        : loss.numel() != 1
            ? str_cat(
                  "The loss has shape ",
                  loss.sizes(),
                  ". Reduce it to a scalar, for example with mean()")
            : std::string(
                  "The loss does not require gradients. Compute it from a "
                  "prepared model, without NoGradGuard")));
  }
  state_->run.backward(loss, options, [&](const at::Tensor& weighted) {
    weighted.backward({}, options.retain_graph);
  });
}

AccumulateGuard Accelerator::begin_micro_batch(
    std::vector<std::shared_ptr<ModelContext>> models) {
  return state_->run.begin_micro_batch(std::move(models));
}

bool Accelerator::sync_gradients() const {
  return step_state()->sync_gradients();
}

JoinGuard Accelerator::begin_join(
    std::vector<ParallelEngine*> engines,
    JoinOptions options) {
  return state_->run.begin_join(std::move(engines), options);
}

void Accelerator::trigger_sync(ParallelEngine& engine) {
  engine.sync_next_backward();
}

void Accelerator::unscale_gradients(PreparedOptimizer& optimizer) {
  optimizer.shared_step()->unscale();
}

void Accelerator::unscale_gradients() {
  state_->run.unscale_gradients();
}

at::Tensor Accelerator::clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double norm_type) {
  return state_->run.clip_grad_norm(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(
    const std::vector<at::Tensor>& parameters,
    double limit) {
  state_->run.clip_grad_value(parameters, limit);
}

bool Accelerator::optimizer_step_was_skipped() const {
  return state_->run.optimizer_step_was_skipped();
}

const std::shared_ptr<GradScaler>& Accelerator::scaler() const {
  return state_->run.scaler();
}

std::shared_ptr<detail::StepCapture> Accelerator::make_capture(
    CaptureOptions options) {
  return std::make_shared<detail::StepCapture>(state_->run, options);
}

Precision Accelerator::mixed_precision() const {
  return state_->run.precision();
}

AutocastGuard Accelerator::autocast(bool enabled) const {
  return AutocastGuard(
      device().type(), enabled ? mixed_precision() : Precision::kNo);
}

void Accelerator::set_trigger() {
  state_->run.set_trigger();
}

bool Accelerator::check_trigger() {
  return state_->run.check_trigger();
}

void Accelerator::end_training() {
  trackers().finish();
  state_->run.shut_down();
}

std::vector<at::Tensor> Accelerator::gather_real(
    const detail::Leaves& leaves) const {
  for (const auto& tensor : leaves.tensors) {
    if (tensor.defined() && tensor.dim() > 0 && tensor.numel() > 1) {
      num_gathered(tensor.size(0));
    }
  }
  return state_->run.batch_rows().gather_real(leaves);
}

int64_t Accelerator::num_gathered(int64_t size) const {
  // Warn only, because the other ranks are about to gather.
  const auto problem = state_->run.batch_rows().mixed_repeats(size);
  if (problem && !state_->has_warned_of_repeats) {
    state_->has_warned_of_repeats = true;
    std::cerr << str_cat(
        "[gather_for_metrics] Repeated samples are gathered too: ",
        *problem,
        "\n");
  }
  return state_->run.batch_rows().num_real(size);
}

bool Accelerator::is_in_repeated_batch() const {
  return state_->run.batch_rows().num_real(1) == 0;
}

int64_t Accelerator::num_real_samples(int64_t size) const {
  if (const auto problem = state_->run.batch_rows().mixed_repeats(size)) {
    throw UsageError(str_cat("[metrics] ", *problem));
  }
  return state_->run.batch_rows().num_real(size);
}

void Accelerator::check_equal(const ModelContext& model) const {
  accelerate::check_ranks_equal(*model.engine, model.model);
}

std::vector<std::string> Accelerator::gather_object(
    const std::string& bytes) const {
  return process_group().all_gather_bytes(bytes);
}

void Accelerator::synchronize_rng_states() {
  accelerate::synchronize_rng_states(process_group(), device());
}

} // namespace accelerate
