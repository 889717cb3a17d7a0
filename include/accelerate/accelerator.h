// SPDX-License-Identifier: Apache-2.0
// Start here: the object that makes a training loop distributed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/accelerator_options.h"
#include "accelerate/accumulate.h"
#include "accelerate/capture.h"
#include "accelerate/collectives.h"
#include "accelerate/data_loader.h"
#include "accelerate/detail/preparable.h"
#include "accelerate/export.h"
#include "accelerate/grad_scaler.h"
#include "accelerate/join.h"
#include "accelerate/objects.h"
#include "accelerate/optimizer.h"
#include "accelerate/precision.h"
#include "accelerate/prepared_model.h"
#include "accelerate/process_control.h"
#include "accelerate/process_group.h"
#include "accelerate/profile.h"
#include "accelerate/safetensors_index.h"
#include "accelerate/schedulers.h"
#include "accelerate/splitting.h"
#include "accelerate/state_registry.h"
#include "accelerate/step_times.h"
#include "accelerate/tracking.h"

namespace accelerate {

class StepState;

/// Connects this process to the others of the run, prepares models, optimizers
/// and loaders, and offers the collectives that loops need. No device is named
/// in the loop:
///
///     accelerate::Accelerator accelerator;
///     auto [loader, net, opt] =
///         accelerator.prepare(dataloader, model, optimizer);
///     for (auto& batch : loader) {
///       auto loss = torch::mse_loss(net(batch[0]), batch[1]);
///       accelerator.backward(loss);
///       opt.step();
///       opt.zero_grad();
///     }
///
/// Used by one thread at a time. Several may live in one process, made in the
/// same order on all ranks. Collectives must be called by all ranks.
class ACCELERATE_API Accelerator {
 public:
  /// Throws `ConfigError` on contradictory variables, `TimeoutError` where the
  /// other ranks do not come.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // --- who am I -------------------------------------------------------------
  c10::Device device() const;
  DistributedType distributed_type() const;
  int num_processes() const { return processes().num_processes(); }
  int process_index() const { return processes().process_index(); }
  int local_process_index() const { return processes().local_process_index(); }
  bool is_main_process() const { return processes().is_main_process(); }
  bool is_local_main_process() const {
    return processes().is_local_main_process();
  }
  bool is_last_process() const { return processes().is_last_process(); }
  const ProcessGroup& process_group() const;

  // --- prepare --------------------------------------------------------------
  /// Models (`std::shared_ptr` or TORCH_MODULE holders), optimizers, schedulers
  /// and `accelerate::DataLoader`s, in any number and order; what comes back
  /// stands in the same order, a single object bare. Other objects pass
  /// through; preparing again is harmless. Rank 0's weights go to all ranks.
  template <class... Objects>
  auto prepare(Objects&&... objects) {
    // Braces: from left to right, as each may talk to the other ranks.
    std::tuple<decltype(prepare_one(std::forward<Objects>(objects)))...>
        prepared{prepare_one(std::forward<Objects>(objects))...};
    wire();
    if constexpr (sizeof...(Objects) == 1) {
      return std::get<0>(std::move(prepared));
    } else {
      return prepared;
    }
  }
  /// See `data_loader.h`.
  template <class D, class Collate>
  DataLoader<D, Collate> skip_first_batches(
      const DataLoader<D, Collate>& loader,
      int64_t num_batches) const {
    return accelerate::skip_first_batches(loader, num_batches);
  }
  /// The module that was prepared.
  template <class Module>
  std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) {
    return model.module();
  }

  // --- state ----------------------------------------------------------------
  /// Everything of the run that can be saved and gone on with, each under its
  /// name; add objects of your own. See `state_registry.h`.
  StateRegistry& state();
  /// Saves everything in `state()` as a checkpoint and returns its folder. The
  /// folder has its name only when it is complete; where it exists, its old
  /// state counts until the new one does, and files of your own stay. Without a
  /// folder it is the next of `AcceleratorOptions::checkpoints`. A collective:
  /// where it fails on one rank (`SystemError`: full disk, no rights) it fails
  /// on all, and earlier checkpoints and the run are as they were.
  /// docs/guide_checkpoint.md says what is in it.
  ///
  ///     accelerator.save_state("run/step_100");
  ///     // In a new process, which has prepared the same objects:
  ///     accelerator.load_state("run/step_100");
  std::filesystem::path save_state(
      const std::filesystem::path& folder = {},
      const SaveStateOptions& options = {});
  /// Where the time of the steps went that this thread has done since the
  /// Accelerator was made. Always there: it costs a few reads of a clock.
  ///
  ///     accelerator.print(accelerator.step_times().summary());
  StepTimes step_times() const;
  /// Until nothing is being written any more. What an asynchronous save failed
  /// with is thrown here, or by the next call that saves, loads or looks for a
  /// checkpoint, or by `end_training`; once. A program that ends waits too, and
  /// can only print it.
  void wait_for_save() const;
  /// Verifies a checkpoint, then restores the state of all objects. "latest" is
  /// the one saved last in the folder of `AcceleratorOptions::checkpoints` that
  /// is complete and intact on every rank, unless a folder is really named so;
  /// newer ones that are not are named on stderr. Another number of processes
  /// may load it; generators are then not restored, which is said on stderr.
  ///
  /// A collective: each rank verifies what it loads, and nothing changes on any
  /// rank unless all of them can load. If one cannot, all throw the same error,
  /// which names the rank: `DataError` if the checkpoint is damaged or lacks a
  /// rank's part, `UsageError` if other objects were prepared, `SystemError` if
  /// there is none.
  void load_state(const std::filesystem::path& folder = "latest");
  /// What `load_state("latest")` would load, as far as this rank sees; nothing
  /// at the first start of a run. Damaged and unfinished ones do not count.
  std::optional<std::filesystem::path> latest_checkpoint() const;
  /// Whether the run was asked to end soon, by SIGTERM or SIGUSR1 to any of its
  /// processes or to the launcher (a machine that is taken away, the end of the
  /// time that Slurm gave); true on all ranks at the same step. A collective.
  /// From the first call on the two signals no longer end the process, unless
  /// the program has a handler of its own, which stays. Before that a signal
  /// sent to the process ends it; one sent to the launcher is held back until
  /// the first call, for at most half of `--grace_seconds`.
  ///
  ///     if (accelerator.should_stop()) {
  ///       accelerator.save_and_leave();
  ///     }
  bool should_stop();
  /// Saves as `save_state` and ends the process with a code that makes the
  /// launcher start the job again without counting a failure, or, where it was
  /// asked to end itself, passes on to who started it: 75, EX_TEMPFAIL. The new
  /// processes go on by `load_state("latest")`.
  [[noreturn]] void save_and_leave(const std::filesystem::path& folder = {});
  /// Writes the weights alone, as Hugging Face lays out models:
  /// `model.safetensors`, or several files with an index where they are larger
  /// than `options.max_shard_bytes`. Only the main process writes (one of every
  /// machine with `save_on_each_node`), and nobody waits for it. Where ranks
  /// hold parts of the parameters (`ShardStage::kParameters`), a collective
  /// that gives the main process the whole. Writes `config.json` too if the
  /// module has a `saved_config(dtype)` that gives its text, as those of
  /// `models.h` have. Throws `SystemError`.
  template <class Module>
  void save_model(
      const PreparedModel<Module>& model,
      const std::filesystem::path& folder,
      const safetensors::SaveOptions& options = {}) const {
    ConfigText config;
    if constexpr (requires {
                    {
                      model->saved_config(at::kFloat)
                      } -> std::convertible_to<std::string>;
                  }) {
      config = [&](at::ScalarType dtype) { return model->saved_config(dtype); };
    }
    write_model(*model.context(), folder, options, config);
  }

  // --- gradients ------------------------------------------------------------
  /// Runs autograd; gradients of prepared models are averaged over ranks on the
  /// way. The loss is divided by the number of micro-batches, or weighted (see
  /// `BackwardOptions`), and scaled with fp16. Throws `UsageError` where `loss`
  /// is no scalar with a graph, or comes from no prepared model.
  void backward(const at::Tensor& loss, BackwardOptions options = {});

  /// Around one micro-batch of these models. Gradients meet and optimizers step
  /// in every `accumulation.num_steps`-th, and in the last batch of the loader
  /// that feeds the step: the one that handed out a batch last and whose loop
  /// still runs, so that a validation loop inside changes nothing.
  template <class... Modules>
  [[nodiscard]] AccumulateGuard accumulate(PreparedModel<Modules>&... models) {
    return begin_micro_batch({models.context()...});
  }
  /// Whether the micro-batch under way ends in an update of the weights.
  bool sync_gradients() const;
  /// Gradients of `model` stay local while the guard lives.
  template <class Module>
  [[nodiscard]] NoSyncGuard no_sync(PreparedModel<Module>& model) {
    return NoSyncGuard(model.engine());
  }
  /// Around a loop in which ranks may have different numbers of batches: see
  /// `join.h`. Give all models that the loop trains.
  template <class... Modules>
  [[nodiscard]] JoinGuard join_uneven_inputs(
      PreparedModel<Modules>&... models) {
    return join_uneven_inputs(JoinOptions{}, models...);
  }
  template <class... Modules>
  [[nodiscard]] JoinGuard join_uneven_inputs(
      JoinOptions options,
      PreparedModel<Modules>&... models) {
    return begin_join({&models.engine()...}, options);
  }
  /// Makes the next backward average all gradients of `model`, although its
  /// forward ran under `no_sync`.
  template <class Module>
  void trigger_sync_in_backward(PreparedModel<Module>& model) {
    trigger_sync(model.engine());
  }

  /// Divides fp16 gradients by the scale, so that they can be looked at. Done
  /// once per step; `step` and the clips below do it by themselves. Nothing
  /// while gradients are accumulated.
  void unscale_gradients(PreparedOptimizer& optimizer);
  /// The same for all prepared optimizers.
  void unscale_gradients();
  /// Shrinks all gradients alike so that their norm is at most `max_norm`.
  /// Returns the norm before as a tensor that nobody has waited for. While
  /// gradients are accumulated it leaves them alone and returns NaN.
  at::Tensor clip_grad_norm_(
      const std::vector<at::Tensor>& parameters,
      double max_norm,
      double norm_type = 2.0);
  /// Cuts each number of the gradients to `[-limit, limit]`; nothing while
  /// gradients are accumulated.
  void clip_grad_value_(
      const std::vector<at::Tensor>& parameters,
      double limit);
  /// Whether the latest step of any prepared optimizer was left out because of
  /// an overflow.
  bool optimizer_step_was_skipped() const;
  /// Empty without fp16.
  const std::shared_ptr<GradScaler>& scaler() const;

  // --- capture --------------------------------------------------------------
  /// A step that a GPU repeats by itself. The first calls with inputs of a
  /// shape run `function` as it is (`CaptureOptions::num_warmup`); the next one
  /// records what it orders as one graph, which every further call replays:
  /// the host only copies the inputs and starts it. Inputs of another shape get
  /// a graph of their own.
  ///
  ///     auto step = accelerator.capture([&](const Sample& batch) {
  ///       auto loss = torch::mse_loss(net(batch.x), batch.y);
  ///       accelerator.backward(loss);
  ///       opt.step();
  ///       opt.zero_grad();
  ///       return loss;
  ///     });
  ///     for (auto& batch : loader) {
  ///       auto loss = step(batch);
  ///       scheduler.step();
  ///     }
  ///
  /// What the function does on the host happens in warm-up and recording only:
  /// counters, prints, `accumulate` and schedulers belong around the call.
  /// Random numbers, learning rates, windows of `accumulate` and clipping are
  /// those of a step that is not captured; weights, moments and modes of
  /// modules must stay where they are (`load_state` makes the graphs anew).
  ///
  /// Where a step cannot be captured, one line on standard error says why and
  /// the function runs as it is: on the CPU, with processes that meet by
  /// another backend than NCCL, with sharding or an engine of one's own, an
  /// optimizer that takes numbers of the host, or a function that waits for the
  /// device.
  template <class Function>
  CapturedStep<std::decay_t<Function>> capture(
      Function&& function,
      CaptureOptions options = {}) {
    return {std::forward<Function>(function), make_capture(options)};
  }

  // --- precision ------------------------------------------------------------
  Precision mixed_precision() const;
  /// The precision of the run for code outside of a prepared model; with
  /// `enabled` false, full precision inside of it.
  [[nodiscard]] AutocastGuard autocast(bool enabled = true) const;

  // --- seeing ---------------------------------------------------------------
  /// Starts the trackers of `options` on the main process; on the others what
  /// is logged goes nowhere. To be called on all ranks, before `load_state`:
  /// the step that comes next, and where each tracker keeps the run, are part
  /// of `state()`. A second call finishes the trackers of the first and begins
  /// with step 0. docs/guide_observe.md.
  ///
  ///     accelerator.init_trackers(
  ///         "sky",
  ///         {.log_with = {"tensorboard", "jsonl"},
  ///          .configuration = {{"lr", 1e-3}}});
  ///     accelerator.log({{"loss", loss}}, step);
  ///     accelerator.end_training();
  void init_trackers(const std::string& project, TrackingOptions options = {});
  /// See `Trackers::log`.
  void log(const TrackedValues& values, std::optional<int64_t> step = {}) {
    trackers().log(values, step);
  }
  /// uint8, or floating from 0 to 1, of shape N x C x H x W or C x H x W with
  /// one or three channels. Throws `UsageError` on others.
  void log_images(
      const std::string& name,
      const at::Tensor& images,
      std::optional<int64_t> step = {});
  /// How the numbers of a tensor are spread. Throws `UsageError` where they are
  /// not real.
  void log_histogram(
      const std::string& name,
      const at::Tensor& values,
      std::optional<int64_t> step = {});
  /// See `Trackers::get`.
  Tracker& get_tracker(const std::string& name) { return trackers().get(name); }
  Trackers& trackers();
  /// Records what the loop does while the result lives; on every rank that
  /// calls it. See `profile.h`.
  ///
  ///     auto profile = accelerator.profile(
  ///         {.schedule = accelerate::ProfileSchedule{.wait = 1, .active = 3},
  ///          .output_trace_dir = "traces"});
  ///     for (auto& batch : loader) {
  ///       auto loss = torch::mse_loss(net(batch.x), batch.y);
  ///       accelerator.backward(loss);
  ///       profile.step();
  ///     }
  ///     accelerator.print_once(profile.table());
  [[nodiscard]] Profile profile(ProfileOptions options = {}) const {
    return {std::move(options), device(), process_index()};
  }

  // --- process control ------------------------------------------------------
  /// The parts of a run that need no model; see `process_control.h`.
  const ProcessControl& processes() const;
  /// Prints the values in one line, once per machine (on the first process of
  /// each).
  template <class... Values>
  void print(const Values&... values) const {
    processes().print(values...);
  }
  /// As `print`, once per run (on the main process).
  template <class... Values>
  void print_once(const Values&... values) const {
    processes().print_once(values...);
  }
  void wait_for_everyone() { processes().wait_for_everyone(); }
  /// Lets the main process run the block first: the others wait where the guard
  /// is made, the main process releases them when its guard goes.
  [[nodiscard]] ProcessControl::FirstGuard main_process_first() {
    return processes().main_process_first();
  }
  /// As above, for the first process of each machine.
  [[nodiscard]] ProcessControl::FirstGuard local_main_process_first() {
    return processes().local_main_process_first();
  }
  template <class F>
  void on_main_process(F&& f) {
    processes().on_main_process(std::forward<F>(f));
  }
  template <class F>
  void on_local_main_process(F&& f) {
    processes().on_local_main_process(std::forward<F>(f));
  }
  template <class F>
  void on_last_process(F&& f) {
    processes().on_last_process(std::forward<F>(f));
  }
  template <class F>
  void on_process(int process_index, F&& f) {
    processes().on_process(process_index, std::forward<F>(f));
  }

  /// This rank's part of a vector, a tensor or a map of them: `splitting.h`.
  template <class T>
  T split_between_processes(const T& inputs, bool apply_padding = false) const {
    return split(inputs, processes().shard(), apply_padding);
  }

  /// Raises a flag that every rank sees at its next `check_trigger`.
  void set_trigger();
  /// Whether any rank has raised it since the last check, on all ranks alike.
  bool check_trigger();

  /// Finishes the trackers and leaves the group. From then on collectives of
  /// several processes throw, also those of other Accelerators of this process,
  /// which share it.
  void end_training();

  // --- collectives on trees -------------------------------------------------
  /// See `collectives.h`. Gathered values stand in rank order on every rank.
  template <class T>
  GatheredOf<T> gather(const T& value) const {
    return accelerate::all_gather(process_group(), value);
  }
  /// As `gather`, without the samples that a loader repeated to fill up the
  /// last batch: what is gathered over an epoch is each sample exactly once.
  /// Call it in the loop over a prepared loader, with values that have one row
  /// per sample of the batch. If a loader repeated a whole batch, as it does
  /// with packed ones, none of its rows are gathered, whatever they stand for.
  /// Tensors with another number of rows than samples are gathered whole; if
  /// some of the samples are repeats, a warning on stderr says so, once. So are
  /// scalars. A loss that was repeated `batch_size` times counts once for each
  /// sample of a short batch. Outside of loops nothing is left out.
  ///
  ///     for (auto& batch : eval_loader) {
  ///       auto [p, y] = accelerator.gather_for_metrics(
  ///           std::make_pair(net(batch.x).argmax(1), batch.y));
  ///       num_right += p.eq(y).sum().item<int64_t>();
  ///     }
  ///
  /// A vector of objects (numbers, strings, containers and structs of them, one
  /// for each sample) gives everybody's objects in rank order.
  template <class T>
  GatheredOf<T> gather_for_metrics(const T& value) const {
    return detail::put_back(
        detail::make_room(value), gather_real(detail::take_apart(value)));
  }
  template <tree::PlainObject T>
  std::vector<T> gather_for_metrics(const std::vector<T>& objects) const {
    return gather_objects(process_group(), real(objects));
  }
  /// For other objects: see `objects.h`.
  template <class T, class ToBytes, class FromBytes>
  std::vector<T> gather_for_metrics(
      const std::vector<T>& objects,
      ToBytes&& to_bytes,
      FromBytes&& from_bytes) const {
    return gather_objects(
        process_group(),
        real(objects),
        std::forward<ToBytes>(to_bytes),
        std::forward<FromBytes>(from_bytes));
  }
  template <class T>
  T reduce(const T& value, ReduceOp op = ReduceOp::kSum) const {
    return accelerate::reduce(process_group(), value, op);
  }
  template <class T>
  void broadcast(T& value, int from_process = 0) const {
    accelerate::broadcast(process_group(), value, from_process);
  }
  template <class T>
  T pad_across_processes(const T& value, PadOptions options = {}) const {
    return accelerate::pad_across_processes(process_group(), value, options);
  }
  /// How many of `size` rows, one for each sample of the batch in use, are no
  /// repetition; they come first. Rows that stand for something else, such as
  /// tokens, are all real, or none if the whole batch is a repetition. All
  /// outside of loops. Throws `UsageError` if some samples of the batch are
  /// repeats and it has another number of samples than `size`.
  int64_t num_real_samples(int64_t size) const;
  /// Compares the parameters of a model across ranks by their hashes (buffers,
  /// such as running means, may differ between forwards). Throws
  /// `MismatchError` on all ranks, naming the first tensor that differs and the
  /// ranks. A collective, which reads every weight: for after weights were
  /// changed by hand. Runs with `debug` call it by themselves, in every 100th
  /// backward.
  template <class Module>
  void check_ranks_equal(const PreparedModel<Module>& model) const {
    check_equal(*model.context());
  }
  /// Everybody's bytes in rank order.
  std::vector<std::string> gather_object(const std::string& bytes) const;
  /// Rank 0's state of the CPU's generator, and of `device()`'s, for everybody.
  void synchronize_rng_states();

 private:
  template <class Object>
  decltype(auto) prepare_one(Object&& object) {
    using Kind = std::remove_cvref_t<Object>;
    static_assert(
        !detail::TorchDataLoader<Kind>,
        "torch::data loaders hide their sampler and cannot be sharded: use "
        "accelerate::DataLoader");
    static_assert(
        !std::derived_from<Kind, torch::nn::Module>,
        "prepare takes a module by a std::shared_ptr or a TORCH_MODULE holder, "
        "not by value: make it with std::make_shared<Net>(...)");
    static_assert(
        !detail::OtherModulePointer<Kind>,
        "prepare shares the module: give it a std::shared_ptr or a "
        "TORCH_MODULE holder, not a std::unique_ptr or a plain pointer");
    if constexpr (detail::ModulePointer<Kind>) {
      using Module = detail::ModuleOf<Kind>;
      std::shared_ptr<Module> module = detail::module_of(object);
      return PreparedModel<Module>(module, prepare_module(module));
    } else if constexpr (std::derived_from<Kind, torch::optim::Optimizer>) {
      static_assert(
          std::is_lvalue_reference_v<Object>,
          "prepare borrows the optimizer: pass a variable that stays alive");
      return PreparedOptimizer(object, prepare_optimizer(object));
    } else if constexpr (std::is_same_v<Kind, Scheduler>) {
      return prepare_scheduler(object);
    } else if constexpr (detail::IsDataLoader<Kind>) {
      auto prepared =
          object.is_prepared() ? Kind(object) : object.prepared(loader_place());
      state().add("loader", prepared.stateful());
      return prepared;
    } else if constexpr (detail::IsPrepared<Kind>) {
      return Kind(object);
    } else {
      return Object(std::forward<Object>(object));
    }
  }

  std::shared_ptr<ModelContext> prepare_module(
      const std::shared_ptr<torch::nn::Module>& module);
  std::shared_ptr<OptimizerStep> prepare_optimizer(
      torch::optim::Optimizer& optimizer);
  void check_equal(const ModelContext& model) const;
  AccumulateGuard begin_micro_batch(
      std::vector<std::shared_ptr<ModelContext>> models);
  void trigger_sync(ParallelEngine& engine);
  JoinGuard begin_join(
      std::vector<ParallelEngine*> engines,
      JoinOptions options);
  std::shared_ptr<detail::StepCapture> make_capture(CaptureOptions options);
  Scheduler prepare_scheduler(Scheduler scheduler);
  void wire();
  using ConfigText = std::function<std::string(at::ScalarType)>;
  void write_model(
      const ModelContext& model,
      const std::filesystem::path& folder,
      const safetensors::SaveOptions& options,
      const ConfigText& config) const;
  std::optional<c10::Device> placement() const;
  std::shared_ptr<StepState> step_state() const;
  detail::LoaderPlace loader_place() const;
  std::vector<at::Tensor> gather_real(const detail::Leaves& leaves) const;
  int64_t num_gathered(int64_t size) const;
  friend class Metric;
  bool is_in_repeated_batch() const;
  template <class T>
  std::vector<T> real(const std::vector<T>& objects) const {
    const auto size = static_cast<std::ptrdiff_t>(objects.size());
    return {objects.begin(), objects.begin() + num_gathered(size)};
  }

  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
