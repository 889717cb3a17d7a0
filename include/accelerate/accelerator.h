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
#include "accelerate/data_loader.h"
#include "accelerate/detail/preparable.h"
#include "accelerate/distributed/collectives.h"
#include "accelerate/distributed/join.h"
#include "accelerate/distributed/objects.h"
#include "accelerate/distributed/process_control.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/distributed/splitting.h"
#include "accelerate/export.h"
#include "accelerate/files/safetensors_index.h"
#include "accelerate/observe/profile.h"
#include "accelerate/observe/step_times.h"
#include "accelerate/observe/tracking.h"
#include "accelerate/optimizer.h"
#include "accelerate/prepared_model.h"
#include "accelerate/schedulers.h"
#include "accelerate/state/state_registry.h"
#include "accelerate/training/accumulate.h"
#include "accelerate/training/capture.h"
#include "accelerate/training/grad_scaler.h"
#include "accelerate/training/precision.h"

namespace accelerate {

class StepState;

/// Connects this process to the other ranks, prepares models, optimizers and
/// loaders, and provides the collectives that a training loop needs. The loop
/// contains no device-specific code:
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
/// Use it from one thread at a time. A process may create several Accelerators,
/// in the same order on all ranks. Every rank must call every collective.
class ACCELERATE_API Accelerator {
 public:
  /// Throws `ConfigError` if environment variables contradict each other, and
  /// `TimeoutError` if other ranks do not connect in time.
  explicit Accelerator(AcceleratorOptions options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // --- this process --------------------------------------------------------
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
  /// The group of processes that see different data. With tensor parallelism,
  /// it contains one process of each set of tensor-parallel ranks. Otherwise,
  /// it contains all processes.
  const ProcessGroup& data_group() const;

  // --- prepare --------------------------------------------------------------
  /// Prepares models (`std::shared_ptr` or TORCH_MODULE holders), optimizers,
  /// schedulers and `accelerate::DataLoader`s, in any order. Returns a tuple in
  /// the same order, or the object itself if there is only one. Objects of
  /// other types are returned unchanged. Preparing an object twice has no
  /// effect. Broadcasts rank 0's weights to all ranks.
  template <class... Objects>
  auto prepare(Objects&&... objects) {
    // Braces evaluate from left to right. The order matters because preparing
    // an object may communicate.
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
  /// Returns the module that was passed to `prepare`.
  template <class Module>
  std::shared_ptr<Module> unwrap_model(const PreparedModel<Module>& model) {
    return model.module();
  }

  // --- state ----------------------------------------------------------------
  /// All state that `save_state` writes and `load_state` restores, by name.
  /// Register your own objects here (see `state_registry.h`).
  StateRegistry& state();
  /// Saves everything in `state()` as a checkpoint and returns its folder. The
  /// checkpoint appears atomically: a reader sees the previous checkpoint or
  /// the complete new one. Other files in the folder are kept. If no folder is
  /// given, `AcceleratorOptions::checkpoints` chooses the next one. Collective.
  /// If saving fails on one rank (`SystemError`, for example because the disk
  /// is full), all ranks throw, and earlier checkpoints and the run are
  /// unchanged. docs/guide_checkpoint.md lists the contents.
  ///
  ///     accelerator.save_state("run/step_100");
  ///     // In a new process, which has prepared the same objects:
  ///     accelerator.load_state("run/step_100");
  std::filesystem::path save_state(
      const std::filesystem::path& folder = {},
      const SaveStateOptions& options = {});
  /// Returns how this thread has spent the time of its steps since the
  /// Accelerator was created. The times are always measured, which costs a few
  /// clock reads per step.
  ///
  ///     accelerator.print(accelerator.step_times().summary());
  StepTimes step_times() const;
  /// Blocks until asynchronous saves have finished. Rethrows the error of a
  /// failed save once: here, in the next call that saves, loads or looks for a
  /// checkpoint, or in `end_training`. The program also waits when it exits,
  /// but then it can only print the error.
  void wait_for_save() const;
  /// Verifies a checkpoint, then restores the state of all objects. "latest"
  /// loads the newest checkpoint in the folder of
  /// `AcceleratorOptions::checkpoints` that is complete and intact on every
  /// rank, unless a folder named "latest" exists. Damaged newer checkpoints are
  /// reported on stderr. The number of processes may differ from that of the
  /// run that saved the checkpoint. In this case, random generators are not
  /// restored, and a message on stderr says so.
  ///
  /// Collective. Each rank verifies what it loads, and no rank changes its
  /// state until every rank is able to load. If one rank is not, all ranks
  /// throw the same error, which names that rank: `DataError` if the checkpoint
  /// is damaged or lacks a rank's files, `UsageError` if different objects were
  /// prepared, or `SystemError` if there is no checkpoint.
  void load_state(const std::filesystem::path& folder = "latest");
  /// Returns the checkpoint that `load_state("latest")` would load, as far as
  /// this rank can tell. Empty if there is none. Ignores damaged and unfinished
  /// checkpoints.
  std::optional<std::filesystem::path> latest_checkpoint() const;
  /// Returns whether any process of the run, or its launcher, has received
  /// SIGTERM or SIGUSR1. These signals ask the run to end soon, for example
  /// because the machine is preempted or Slurm's time limit is near. All ranks
  /// get the same result at the same step. Collective. After the first call,
  /// these signals no longer end the process. Before the first call, a signal
  /// ends a process that receives it. A signal to the launcher is held back
  /// until the first call, but for at most half of `--grace_seconds`. The
  /// program's own signal handlers stay installed.
  ///
  ///     if (accelerator.should_stop()) {
  ///       accelerator.save_and_leave();
  ///     }
  bool should_stop();
  /// Saves as `save_state` does and ends the process with exit code 75
  /// (EX_TEMPFAIL). The launcher then restarts the job without counting a
  /// failure. If the launcher itself was asked to end, it exits with the same
  /// code instead. The new processes resume with `load_state("latest")`.
  [[noreturn]] void save_and_leave(const std::filesystem::path& folder = {});
  /// Writes only the weights, in Hugging Face's layout: `model.safetensors`, or
  /// several files with an index if they exceed `options.max_shard_bytes`. Only
  /// the main process writes (one process per machine with
  /// `save_on_each_node`), and the others do not wait for it. If parameters are
  /// sharded (`ShardStage::kParameters`), this is a collective that gathers
  /// them on the main process. Also writes `config.json` if the module has a
  /// function `saved_config(dtype)` that returns the text of this file, as the
  /// models of `models.h` do. Throws `SystemError`.
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
  /// Runs autograd and averages the gradients of prepared models over ranks.
  /// The loss is divided by the number of micro-batches, or weighted (see
  /// `BackwardOptions`). With fp16, it is also scaled. Throws `UsageError` if
  /// `loss` is not a scalar that requires a gradient, or does not depend on any
  /// prepared model.
  void backward(const at::Tensor& loss, BackwardOptions options = {});

  /// Opens the scope of one micro-batch for these models. Gradients are
  /// synchronised and optimizers step in every `accumulation.num_steps`-th
  /// scope, and on the last batch of the loader that feeds the step. Among the
  /// loaders whose loops are still running, this is the one that most recently
  /// returned a batch. A validation loop inside the training loop therefore has
  /// no effect.
  template <class... Modules>
  [[nodiscard]] AccumulateGuard accumulate(PreparedModel<Modules>&... models) {
    return begin_micro_batch({models.context()...});
  }
  /// Whether the current micro-batch ends with an update of the weights.
  bool sync_gradients() const;
  /// During the lifetime of the guard, gradients of `model` stay local.
  template <class Module>
  [[nodiscard]] NoSyncGuard no_sync(PreparedModel<Module>& model) {
    return NoSyncGuard(model.engine());
  }
  /// Guards a loop in which ranks may have different numbers of batches (see
  /// `join.h`). Pass all models that the loop trains.
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
  /// Makes the next backward pass average all gradients of `model`, even if its
  /// forward pass ran under `no_sync`.
  template <class Module>
  void trigger_sync_in_backward(PreparedModel<Module>& model) {
    trigger_sync(model.engine());
  }

  /// Divides fp16 gradients by the loss scale, so that you can inspect them.
  /// Gradients are unscaled only once per step. `step` and the clip functions
  /// below do it automatically. Has no effect during gradient accumulation.
  void unscale_gradients(PreparedOptimizer& optimizer);
  /// Unscales the gradients of all prepared optimizers.
  void unscale_gradients();
  /// Scales all gradients by the same factor so that their norm is at most
  /// `max_norm`. Returns the norm before clipping, as a tensor that the device
  /// may still be computing. During gradient accumulation, this function
  /// changes nothing and returns NaN.
  at::Tensor clip_grad_norm_(
      const std::vector<at::Tensor>& parameters,
      double max_norm,
      double norm_type = 2.0);
  /// Clamps each element of the gradients to `[-limit, limit]`. Has no effect
  /// during gradient accumulation.
  void clip_grad_value_(
      const std::vector<at::Tensor>& parameters,
      double limit);
  /// Whether the latest step of any prepared optimizer was skipped because of
  /// an overflow.
  bool optimizer_step_was_skipped() const;
  /// Null unless the precision is fp16.
  const std::shared_ptr<GradScaler>& scaler() const;

  // --- capture --------------------------------------------------------------
  /// Captures a training step as CUDA graphs. For each shape of the inputs, the
  /// first calls run `function` eagerly (`CaptureOptions::num_warmup`), and the
  /// next call records its work on the device as a graph. Every later call
  /// replays the graph: the host only copies the inputs and launches the graph.
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
  /// Host code in the function runs only during warm-up and recording, so keep
  /// counters, prints, `accumulate` and schedulers outside of the function.
  /// Random numbers, learning rates, gradient accumulation and clipping behave
  /// as in an eager step. Weights and optimizer state must stay at their
  /// addresses, and modules must stay in training or evaluation mode.
  /// `load_state` drops the graphs.
  ///
  /// If a step cannot be captured, the function runs eagerly, and one line on
  /// stderr says why. This is the case on the CPU, with a backend other than
  /// NCCL for several processes, with sharding or a custom engine, with an
  /// optimizer that reads scalars on the host, or if the function waits for the
  /// device.
  template <class Function>
  CapturedStep<std::decay_t<Function>> capture(
      Function&& function,
      CaptureOptions options = {}) {
    return {std::forward<Function>(function), make_capture(options)};
  }

  // --- precision ------------------------------------------------------------
  Precision mixed_precision() const;
  /// Applies the precision of the run to code outside of a prepared model. If
  /// `enabled` is false, operators compute in full precision, even inside of a
  /// prepared model.
  [[nodiscard]] AutocastGuard autocast(bool enabled = true) const;

  // --- trackers and profiling -----------------------------------------------
  /// Starts the trackers of `options` on the main process. Other ranks discard
  /// what they log. Call this function on all ranks and before `load_state`,
  /// because `state()` includes the next step and the identity of each
  /// tracker's run. A second call finishes the trackers of the first call and
  /// starts at step 0. See docs/guide_observe.md.
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
  /// `images` must have the shape N x C x H x W or C x H x W, with one or three
  /// channels. Its dtype must be uint8, or a floating-point type with values
  /// from 0 to 1. Throws `UsageError` otherwise.
  void log_images(
      const std::string& name,
      const at::Tensor& images,
      std::optional<int64_t> step = {});
  /// Logs the distribution of the elements of a tensor. Throws `UsageError` if
  /// the elements are not real numbers.
  void log_histogram(
      const std::string& name,
      const at::Tensor& values,
      std::optional<int64_t> step = {});
  /// See `Trackers::get`.
  Tracker& get_tracker(const std::string& name) { return trackers().get(name); }
  Trackers& trackers();
  /// Profiles the loop during the lifetime of the returned object, on every
  /// rank that calls this function. See `profile.h`.
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
  /// The functions of this class that do not need a model (see
  /// `process_control.h`).
  const ProcessControl& processes() const;
  /// Prints the values on one line, once per machine (on its first process).
  template <class... Values>
  void print(const Values&... values) const {
    processes().print(values...);
  }
  /// Like `print`, but once per run (on the main process).
  template <class... Values>
  void print_once(const Values&... values) const {
    processes().print_once(values...);
  }
  void wait_for_everyone() { processes().wait_for_everyone(); }
  /// Lets the main process run the block first. The other ranks wait in the
  /// constructor of the guard until the main process destroys its guard.
  [[nodiscard]] ProcessControl::FirstGuard main_process_first() {
    return processes().main_process_first();
  }
  /// Like `main_process_first`, but for the first process of each machine.
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

  /// Returns this rank's share of a vector, a tensor or a map of these (see
  /// `splitting.h`).
  template <class T>
  T split_between_processes(const T& inputs, bool apply_padding = false) const {
    return split(inputs, processes().shard(), apply_padding);
  }

  /// Sets a flag that every rank sees in its next `check_trigger`.
  void set_trigger();
  /// Whether any rank has set the flag since the last check. The result is the
  /// same on all ranks. Resets the flag.
  bool check_trigger();

  /// Finishes the trackers and leaves the group. Afterwards, collectives
  /// between several processes throw. This includes those of other Accelerators
  /// in this process, because all Accelerators of a process share the group.
  void end_training();

  // --- collectives on trees -------------------------------------------------
  /// See `collectives.h`. Values are in rank order on every rank.
  template <class T>
  GatheredOf<T> gather(const T& value) const {
    return accelerate::all_gather(process_group(), value);
  }
  /// Like `gather` over `data_group`, but drops the samples that a loader
  /// repeated to complete the last batch, so that each sample of an epoch is
  /// gathered exactly once. Call it in the loop over a prepared loader, with
  /// values that have one row per sample of the batch. If a loader repeated a
  /// whole batch, as it does with packed batches, all its rows are dropped,
  /// whatever they represent. Scalars, and tensors whose number of rows differs
  /// from the number of samples, are gathered completely, with one warning on
  /// stderr if the batch contains repeats. If a loss was expanded to
  /// `batch_size` elements and the batch is short, one element per sample is
  /// gathered. Outside of loops, nothing is dropped.
  ///
  ///     for (auto& batch : eval_loader) {
  ///       auto [p, y] = accelerator.gather_for_metrics(
  ///           std::make_pair(net(batch.x).argmax(1), batch.y));
  ///       num_right += p.eq(y).sum().item<int64_t>();
  ///     }
  ///
  /// Also gathers a vector with one object per sample (numbers, strings, and
  /// containers and structs of them), in rank order.
  template <class T>
  GatheredOf<T> gather_for_metrics(const T& value) const {
    return detail::put_back(
        detail::widen(value), gather_real(detail::take_apart(value)));
  }
  template <tree::PlainObject T>
  std::vector<T> gather_for_metrics(const std::vector<T>& objects) const {
    return gather_objects(data_group(), real(objects));
  }
  /// Like the above, but for objects of other types, which the given functions
  /// serialise (see `objects.h`).
  template <class T, class ToBytes, class FromBytes>
  std::vector<T> gather_for_metrics(
      const std::vector<T>& objects,
      ToBytes&& to_bytes,
      FromBytes&& from_bytes) const {
    return gather_objects(
        data_group(),
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
  /// Returns how many of `size` rows are real, if there is one row per sample
  /// of the current batch. Real rows come first, followed by repeats. If rows
  /// represent something other than samples, such as tokens, the result is
  /// `size`, or 0 if the whole batch is a repeat. Returns `size` outside of
  /// loops. Throws `UsageError` if some samples of the batch are repeats and
  /// the number of samples is not `size`.
  int64_t num_real_samples(int64_t size) const;
  /// Compares the hashes of the parameters of a model across ranks that have
  /// the same part of them; without tensor parallelism, these are all ranks.
  /// Buffers, such as running means, are not compared, because they may differ
  /// between forward passes. If parameters differ, all ranks throw a
  /// `MismatchError`, which names the first tensor that differs and the ranks.
  /// Collective. This function reads every weight, so call it only after you
  /// have changed weights by hand. With `debug`, every 100th backward pass
  /// calls it.
  template <class Module>
  void check_ranks_equal(const PreparedModel<Module>& model) const {
    check_equal(*model.context());
  }
  /// Returns the bytes of all ranks, in rank order.
  std::vector<std::string> gather_object(const std::string& bytes) const;
  /// Copies the state of rank 0's random generators (those of the CPU and of
  /// `device()`) to all ranks.
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
        "prepare takes a module in a std::shared_ptr or a TORCH_MODULE holder, "
        "not by value: make it with std::make_shared<Net>(...)");
    static_assert(
        !detail::OtherModulePointer<Kind>,
        "prepare shares the module: pass a std::shared_ptr or a "
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
      auto prepared = object.is_prepared() ? Kind(object)
                                           : object.prepared(loader_context());
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
  detail::LoaderContext loader_context() const;
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
