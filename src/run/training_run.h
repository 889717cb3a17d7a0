// SPDX-License-Identifier: Apache-2.0
// The part of an Accelerator that does not know which language models and
// optimizers are written in. The C++ facade and the Python package are two
// adapters of it.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/accelerator_options.h"
#include "accelerate/collectives.h"
#include "accelerate/join.h"
#include "accelerate/safetensors_index.h"
#include "accelerate/state_registry.h"
#include "accelerate/step_times.h"
#include "optim/optimizer_step.h"
#include "optim/scheduler_moves.h"
#include "parallel/gradient_norm.h"
#include "run/accumulation.h"
#include "run/assemble.h"
#include "run/loss_watch.h"
#include "state/state_files.h"

namespace accelerate {

/// The state of trackers: a run may be tracked or not, before a checkpoint and
/// after it.
inline constexpr const char* kTrackersState = "trackers";

class BackgroundSave;
class HostCopies;
class RankJournal;
class StreamScope;

/// See `find_checkpoint`.
inline constexpr const char* kLatestCheckpoint = "latest";

/// What a recorded step does on the host, which replays have to do as well.
struct RunTrace {
  StepState::Counts counts = {};
  int64_t num_backwards = 0;
  /// An optimizer whose `step` was called.
  struct Called {
    std::weak_ptr<OptimizerStep> optimizer;
    /// Not in the middle of a window.
    bool is_done;
    /// Where the recorded step writes whether it was left out.
    at::Tensor overflow;
  };
  std::vector<Called> optimizers = {};
  /// What ranks tell each other, and how many collectives the device makes.
  std::vector<std::string> meetings = {};
  int64_t num_collectives = 0;
  /// `ParallelEngine::shares_buffers_next` when the step has ended.
  std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares_buffers = {};
};

class ACCELERATE_API TrainingRun {
 public:
  /// `step_state` may be shared with other runs of this process. Throws as
  /// `Accelerator`.
  TrainingRun(
      AcceleratorOptions options,
      const EnvLookup& env,
      std::shared_ptr<StepState> step_state = std::make_shared<StepState>());
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  const AcceleratorOptions& options() const { return options_; }
  const ProcessTopology& topology() const { return assembly_.topology; }
  const ProcessGroup& group() const { return assembly_.group; }
  const Mesh& mesh() const { return assembly_.mesh; }
  c10::Device device() const { return assembly_.device; }
  Precision precision() const { return assembly_.precision; }
  /// Whether what is normally trusted is checked; see `AcceleratorOptions`.
  bool debug() const { return assembly_.debug; }
  DistributedType distributed_type() const;
  const std::shared_ptr<StepState>& step_state() const { return step_state_; }
  const std::shared_ptr<GradScaler>& scaler() const { return scaler_; }

  /// Preparing has two phases: all objects of one call are given first, in any
  /// order, then `wire` lets them meet. `prepare` may be called several times.
  ///
  /// A model that is on its device already, where the run `places_parts` and it
  /// is to be trained only its buffers; in `evaluation_mode` its gradients
  /// never meet those of other ranks. Errors name its `type`. Throws
  /// `UsageError` on fp16 parameters with fp16.
  std::shared_ptr<ModelContext> prepare_model(
      ParameterSet model,
      std::string type,
      bool evaluation_mode = false);
  /// Whether `prepare_model` cuts parameters where they are and brings each
  /// rank's part to its device: the whole model need not fit there.
  bool places_parts() const;
  /// From now on the gradients of a model that was prepared in evaluation mode
  /// meet those of the other ranks.
  void train_evaluated(const std::shared_ptr<ModelContext>& model);
  std::shared_ptr<OptimizerStep> prepare_optimizer(
      std::unique_ptr<OptimizerAdapter> optimizer);
  /// Optimizers meet the engines of the models whose parameters they hold, and
  /// train what these say. Throws `UsageError` where the strategy trains other
  /// tensors and an optimizer has state for the model's own already.
  void wire();

  /// Everything of this run that has state, under names: `model`, `engine`,
  /// `optimizer`, `scheduler`, `loader`, `scaler`, `generator_cpu`, ...
  const std::shared_ptr<StateRegistry>& state() const { return state_; }

  struct SaveWith {
    /// What a language writes by itself.
    struct Extra {
      /// Objects that are left out, as their state is among the files.
      std::set<std::string> left_out = {};
      /// Names in the folder that the manifest is to list.
      std::set<std::string> files = {};
    };
    /// Called before anything is written, with the folder that is going to be
    /// the checkpoint: may write files there.
    std::function<Extra(const std::filesystem::path& folder)> extra = {};
    /// A collective, which fails on all ranks where it fails on one. Else a
    /// rank never waits for another: the checkpoint is complete with the main
    /// process's part, and other ranks add theirs.
    bool is_of_all = false;
    /// Returns when everything is copied to memory of its own on the host; it
    /// is written while the run goes on.
    bool asynchronous = false;
    /// How many numbered checkpoints are left in the folder that it is in, once
    /// it is complete.
    std::optional<int64_t> total_limit = {};
  };
  /// Makes `folder` a checkpoint of everything in `state()`. Throws
  /// `SystemError`; an older checkpoint is then as it was. One that is still
  /// being written is waited for first; what it failed with is thrown.
  void save_state(const std::filesystem::path& folder, const SaveWith& with);
  /// Until nothing is being written any more. Throws what the last
  /// asynchronous save failed with, once.
  void wait_for_save() const;
  /// The same on all ranks, where it fails on one on all: what was saved before
  /// is then complete, whoever wrote it. For ranks that save without waiting
  /// for each other, before they look for what they load. A collective.
  void wait_for_saves_of_all() const;
  /// The name of the job that saves; the same on all ranks.
  const std::string& job() const { return job_; }
  /// What went wrong on this rank (null: nothing) while it prepared to load, as
  /// `fail_together` does it.
  void fail_load_together(const std::exception_ptr& own) const;
  /// Restores all objects but `without`. A collective: each rank verifies what
  /// it loads, and none changes anything unless all of them can load. Waits for
  /// saves as `wait_for_saves_of_all`. Returns lines that the user should see.
  /// Throws `DataError` on damaged files and `UsageError` if the run consists
  /// of other objects, the same on all ranks.
  std::vector<std::string> load_state(
      const std::filesystem::path& folder,
      const std::set<std::string>& without = {});
  /// Whether a rank was asked to end soon, on all ranks alike. A collective.
  bool should_stop() const;
  /// Where the next one goes that was given no folder. A collective.
  std::filesystem::path next_checkpoint() const;
  using Complain = std::function<void(const std::string& what)>;
  /// The one saved last in the options' folder all bytes of which are as they
  /// were written; `complain` is called for newer ones that are not. Looks on
  /// this rank alone.
  std::optional<std::filesystem::path> latest_checkpoint(
      const Complain& complain = {}) const;
  /// The newest checkpoint in `parent` that is intact on every rank, by the
  /// same name on all. A collective.
  std::optional<std::filesystem::path> latest_of_all(
      const std::filesystem::path& parent,
      const Complain& complain) const;
  /// See `Accelerator`. `order` is that of the tensors in the files, those of
  /// their names where it is empty.
  void save_model(
      const ModelContext& model,
      const std::filesystem::path& folder,
      const safetensors::SaveOptions& options,
      const std::vector<std::string>& order = {}) const;
  /// Whether this process writes what one of all, or of its machine, writes.
  bool is_saving_main() const;
  /// `kLatestCheckpoint` stands for the `latest_of_all`, unless a folder has
  /// that name on any rank. A collective then.
  std::filesystem::path find_checkpoint(
      const std::filesystem::path& folder,
      const Complain& complain) const;

  /// A loss of a model that was called without its context, or of none that was
  /// prepared, is a `UsageError` unless there is something else to do with what
  /// would be said, once for each model. Then a process on its own does not
  /// look.
  void on_raw_loss(Complain complain) { complain_ = std::move(complain); }

  using RunAutograd = std::function<void(const at::Tensor& loss)>;
  /// Divides or weighs the loss, scales it, and has `run` compute gradients.
  void backward(
      const at::Tensor& loss,
      const BackwardOptions& options,
      const RunAutograd& run);
  AccumulateGuard begin_micro_batch(
      std::vector<std::shared_ptr<ModelContext>> models);
  JoinGuard begin_join(
      std::vector<ParallelEngine*> engines,
      JoinOptions options,
      bool even = false) const;
  int64_t num_accumulation_steps() const { return accumulation_->num_steps(); }
  void set_num_accumulation_steps(int64_t num_steps) {
    accumulation_->set_num_steps(num_steps);
  }

  /// Nothing while gradients are accumulated.
  void unscale_gradients();
  /// See `Accelerator`.
  at::Tensor clip_grad_norm(
      const std::vector<at::Tensor>& parameters,
      double max_norm,
      double norm_type);
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double limit);
  bool optimizer_step_was_skipped() const;
  /// What a call of a scheduler's `step` does in this run, which says whether
  /// gradients are accumulated, how many processes there are, and
  /// `scheduler_stepping`.
  SchedulerMoves scheduler_moves(SchedulerCall call) const;

  /// Why a step of this run with such inputs cannot be recorded; empty where it
  /// can.
  std::string why_not_to_capture(const std::vector<at::Tensor>& inputs = {});
  /// Before the first step that may be recorded. Gives back the stream that
  /// such steps run on, recorded or not: one of their own where gradients meet.
  std::unique_ptr<StreamScope> enter_captured_step();
  /// What of the host's side decides which work a step orders.
  std::string capture_key() const;
  /// Whether a step may be recorded or replayed now, and not only run.
  bool is_settled() const;
  /// Runs `work`, which records a step. Where it throws, gradients and counts
  /// are as before. Other ranks hear nothing of it.
  RunTrace trace(const std::function<void()>& work);
  /// The last that is recorded of a step: the scale of losses moves, so that a
  /// replay leaves nothing for the next one to do.
  void end_recorded_step();
  /// What such a step does on the host, before a replay and after it; the first
  /// one is left out of `repeat`, as the recording has done that.
  void repeat(const RunTrace& trace);
  void begin_replay(const RunTrace& trace);
  void end_replay(const RunTrace& trace);
  /// Brings the rates of optimizers to where recorded steps read them.
  void write_learning_rates();
  /// Another number when tensors of models or optimizers lie elsewhere.
  size_t tensor_places() const;

  void set_trigger() { trigger_ = true; }
  bool check_trigger();
  /// Everybody's rows that are no repetition (`gather_for_metrics`).
  std::vector<at::Tensor> gather_real(const detail::Leaves& leaves) const;
  /// How many of `size` rows or objects count, the first ones; `are_copies`: of
  /// one value. See `BatchFacts`.
  int64_t num_real(int64_t size, bool are_copies = false) const;
  /// If `BatchFacts::mixes_repeats`: what a message says about it.
  std::optional<std::string> mixed_repeats(int64_t size) const;
  /// The rows of a tensor that count. Rows of floating-point numbers that are
  /// all alike are copies of one value.
  at::Tensor real_rows(const at::Tensor& values) const;
  /// The steps of the thread that calls, since this run was made.
  StepTimes step_times() const;
  /// What bounds the run, once, where the options ask for it: a run that ends
  /// does so by itself.
  void say_step_times();
  /// From now on the steps of the thread that calls are written into a run's
  /// folder, until the run ends: see `RankJournal`.
  void keep_journal(const std::filesystem::path& folder);
  void end_journal();
  /// Leaves the group. Throws as `wait_for_save`, when it has left.
  void shut_down();

 private:
  static void set_shares_buffers(
      const std::vector<std::pair<std::weak_ptr<ModelContext>, bool>>& shares);
  /// How far the run has come, by which parts of checkpoints are told apart.
  struct Progress final : Stateful {
    int64_t num_backwards = 0;
    StateDict state_dict() const override;
    void load_state_dict(const StateDict& state) override;
  };
  struct PendingSave;
  /// Makes the place, and collects what is to be written there.
  void begin_save(
      const std::filesystem::path& folder,
      const SaveWith& with,
      PendingSave& save);
  struct LoadedState {
    StatesByName states = {};
    /// Objects that stay as they are.
    std::set<std::string> kept = {};
    std::vector<std::string> warnings = {};
  };
  /// What this rank is to load of a checkpoint, which is verified.
  LoadedState read_own_state(
      const std::filesystem::path& folder,
      const std::set<std::string>& without) const;
  /// Leaves out optional objects that only the run or only the checkpoint has;
  /// returns a warning for each.
  std::vector<std::string> leave_optional(
      const std::filesystem::path& folder,
      StatesByName& states,
      std::set<std::string>& kept) const;
  /// Adds what this rank has for itself, or what ranks of another number had;
  /// returns what the user should see.
  std::vector<std::string> add_own_part(
      const CheckpointReader& checkpoint,
      StateReader& reader,
      StatesByName& states) const;
  std::vector<std::string> add_parts_of_all(
      const CheckpointReader& checkpoint,
      StateReader& reader,
      StatesByName& states) const;
  /// Which elements the objects of the run need of saved tensors.
  StateReader::Needs slice_needs() const;
  void put_engine(
      const std::shared_ptr<ModelContext>& model,
      const Strategy& strategy,
      std::optional<at::ScalarType> weights);
  /// Lets the model have another engine when all its parameters were frozen and
  /// some are trained again.
  void let_renew(const std::shared_ptr<ModelContext>& model);
  /// Whether the gradients of the backward that has ended met those of the
  /// other ranks.
  void check_arrivals();
  /// Warn of what trains, but not as meant.
  void watch_loss(const at::Tensor& loss);
  void watch_for_optimizers();
  void warn(const std::string& what) const;
  /// Whether all ranks have the same weights.
  void check_weights() const;
  /// The scale moves as the last steps ask; gradients that are left follow it.
  void settle_scale();
  /// A step is under way: the journal may want a line.
  void note_step();
  void unscale_owners_of(const std::vector<at::Tensor>& parameters);
  /// Whether all optimizers of these parameters take reduced copies, and with
  /// them what gradients are to be multiplied with.
  bool is_trained_with_copies(
      const std::vector<at::Tensor>& parameters,
      const ParallelEngine& engine) const;
  /// The gradients of these parameters, or of what is trained in their place,
  /// by the engines that hold them. Where they are only multiplied, an engine
  /// may keep them as they lie.
  std::vector<HeldGradients> held_gradients(
      const std::vector<at::Tensor>& parameters,
      bool are_multiplied) const;
  std::vector<std::shared_ptr<OptimizerStep>> living_optimizers() const;
  std::vector<std::shared_ptr<ModelContext>> living_models() const;

  AcceleratorOptions options_;
  Assembly assembly_;
  /// The same on all ranks; see `job_name.h`.
  std::string job_;
  std::shared_ptr<StepState> step_state_;
  std::shared_ptr<StateRegistry> state_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::shared_ptr<StepReductions> reductions_;
  std::shared_ptr<Accumulation> accumulation_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<InputWatch> input_watch_;
  std::vector<std::shared_ptr<Stateful>> generators_;
  std::vector<std::weak_ptr<ModelContext>> models_;
  /// Those whose engines have seams to open.
  std::vector<std::weak_ptr<ModelContext>> seamed_models_;
  std::vector<std::weak_ptr<OptimizerStep>> optimizers_;
  bool has_models_ = false;
  Complain complain_;
  /// Whether a loss that reaches no prepared model was complained of.
  bool is_said_to_reach_none_ = false;
  /// Whether an optimizer's parameter of no model was complained of.
  bool is_unowned_said_ = false;
  LossWatch loss_watch_;
  /// Backwards that synchronised gradients.
  int64_t num_synchronised_ = 0;
  bool trigger_ = false;
  /// Of the runs before in this thread.
  StepTimes times_before_;
  bool says_step_times_;
  std::shared_ptr<HostCopies> host_copies_;
  std::optional<ProcessGroup> saving_group_;
  std::unique_ptr<RankJournal> journal_;
  /// The last, so that what it writes goes after it.
  std::unique_ptr<BackgroundSave> saving_;
};

} // namespace accelerate
